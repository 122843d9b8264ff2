"""The dashboard's door: `seqscale dashboard` serves it, Streamlit runs it from the top each time.

Before: the published warehouse.   After: overview.py, the one page so far.
"""

from __future__ import annotations

import streamlit as st

from dashboard import overview

st.set_page_config(page_title="seqscale", page_icon=None, layout="wide")
# A table's own download button writes text cells as they are; ours disarms what a spreadsheet
# would run as a formula, so it is the only one.
_OTHER_DOWNLOAD = "[data-testid='stElementToolbar'] [aria-label='Download as CSV']"
st.html(f"<style>{_OTHER_DOWNLOAD} {{display: none}}</style>")
overview.page()
