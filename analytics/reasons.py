"""Why rows that were read are not in a store; the words that more than one module needs.

Standard library only. The other reasons are spelled where they are applied: ordering.py, rules.py.
"""

from __future__ import annotations

FORGOTTEN = "forgotten"  # rows of people who were erased; also the reason of such an erasure
EXPIRED = "expired"  # the reason of an erasure by retention
BEYOND_RETENTION = "beyond_retention"  # rows that retention dropped, whenever it did
TOO_SHORT = "user_too_short"  # rows of users with fewer events than the shortest history
