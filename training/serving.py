"""The registered model, from code: histories in, next items out. Loaded by MLflow, not imported.

Before: training/register.py logs this file with the parameters as safetensors, the item map and
the configuration as JSON; nothing is pickled.
After: `mlflow.pyfunc.load_model("models:/seqscale@challenger")`.

Input: a column `history` of lists of item ids (text, as in the data, oldest first). Ids that the
model never saw are skipped; a history without a known id gets no items. Output: the columns `items`
and `scores`, the best first, items of the history left out. Parameter `k`: how many, 10.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
from mlflow.pyfunc.model import PythonModel, PythonModelContext

DEFAULT_K = 10


class NextItems(PythonModel):
    """SASRec over one user's history at a time; exact, on the CPU."""

    def load_context(self, context: PythonModelContext) -> None:
        """Read parameters, item map and configuration."""
        import torch

        from training.config import ModelConfig, from_json
        from training.parameters import load_model

        config_text = Path(context.artifacts["config"]).read_text(encoding="utf-8")
        config = from_json(ModelConfig, config_text)
        table_VD, self._model = load_model(Path(context.artifacts["parameters"]), config)
        self._table_VD = table_VD
        self._unit_VD = torch.nn.functional.normalize(table_VD, dim=1)
        ids = json.loads(Path(context.artifacts["items"]).read_text(encoding="utf-8"))
        self._item_ids: list[str] = ids
        self._index_of = {item_id: index for index, item_id in enumerate(ids)}

    def predict(
        self,
        context: PythonModelContext,
        model_input: pd.DataFrame,
        params: dict[str, Any] | None = None,
    ) -> pd.DataFrame:
        """The k best next items of each history, one row a history."""
        k = int((params or {}).get("k", DEFAULT_K))
        ranked = [self._rank(list(history), k) for history in model_input["history"]]
        return pd.DataFrame(
            {"items": [items for items, _ in ranked], "scores": [scores for _, scores in ranked]}
        )

    def _rank(self, history: list[str], k: int) -> tuple[list[str], list[float]]:
        import torch

        known = [self._index_of[item] for item in history if item in self._index_of]
        if not known or k < 1:
            return [], []
        newest = known[-self._model.config.max_length :]
        with torch.inference_mode():
            hidden_LD = self._model.encode(self._table_VD[newest], (len(newest),))
            user_D = torch.nn.functional.normalize(hidden_LD[-1], dim=0)
            score_V = self._unit_VD @ user_D / self._model.config.temperature
            score_V[known] = -torch.inf
            num_left = len(self._item_ids) - len(set(known))
            best = torch.topk(score_V, min(k, num_left))
        return [self._item_ids[i] for i in best.indices.tolist()], best.values.tolist()


mlflow.models.set_model(NextItems())
