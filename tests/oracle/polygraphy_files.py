# requires: polygraphy==0.53.6, numpy==2.4.6
"""Writes tests/tensors/data/polygraphy: RunResults as Polygraphy itself saves them, with numpy's figures beside.

one.json: one runner, two iterations. two.json: two runners, an output that is no array of numbers, Fortran order.
"""

import json
from collections import OrderedDict
from pathlib import Path

import numpy as np
from polygraphy.comparator import IterationResult, RunResults

OUT = Path(__file__).parent.parent / "tensors" / "data" / "polygraphy"


def arrays(seed: int) -> "OrderedDict[str, np.ndarray]":
    numbers = np.random.default_rng(seed)
    logits = numbers.standard_normal((2, 7)).astype(np.float32)
    logits[0, 3] = np.nan
    return OrderedDict(
        logits=logits, k_cache=numbers.standard_normal((4, 4, 2, 8)).astype(np.float16), empty=np.zeros((0, 3), np.float32),
        codes=np.asfortranarray(numbers.integers(-128, 127, (3, 5), dtype=np.int8)), scalar=np.array(2.5),
    )  # fmt: skip


def figures(array: np.ndarray) -> dict[str, object]:
    finite = array.astype(np.float64)[np.isfinite(array)]
    told: dict[str, object] = {"dtype": array.dtype.name, "shape": list(array.shape), "nan": int(np.isnan(array).sum()), "values": array.astype(np.float64).ravel().tolist()}
    return told | ({"mean": float(finite.mean()), "norm": float(np.linalg.norm(finite))} if finite.size else {})


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    expected: dict[str, dict[str, object]] = {}
    for name, runners in (("one", ["onnxrt-runner-N0-11/30/26-13:27:00"]), ("two", ["onnxrt-runner-N0-11/30/26-13:27:00", "trt-runner-N0-11/30/26-13:27:09"])):
        results = RunResults()
        told = expected.setdefault(f"{name}.json", {})
        for at, runner in enumerate(runners):
            iterations = []
            for step in range(2):
                outputs = arrays(10 * at + step)
                prefix = f"{runner.partition('-N0')[0]}/" if len(runners) > 1 else ""
                told |= {f"{prefix}{key}@{step}": figures(array) for key, array in outputs.items()}
                iterations.append(IterationResult(outputs=outputs, runtime=0.1, runner_name=runner))
            results.append((runner, iterations))
        results.save(str(OUT / f"{name}.json"))
    (OUT / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
