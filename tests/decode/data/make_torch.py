"""Writes the torch samples of this folder. Needs torch (these are of 2.13.0): `python make_torch.py`."""

import io
import pickle
from pathlib import Path

import numpy as np
import torch

OUT = Path(__file__).parent


def saved(value: object, *, zipped: bool) -> bytes:
    out = io.BytesIO()
    torch.save(value, out, _use_new_zipfile_serialization=zipped)
    return out.getvalue()


base = torch.randn(4, 8, generator=torch.Generator().manual_seed(7))
np.save(OUT / "torch_expected.npy", base.numpy())
for protocol in (2, 3, 4, 5):
    (OUT / f"torch_f32_p{protocol}.pickle").write_bytes(pickle.dumps(base, protocol=protocol))
(OUT / "torch_bf16_p4.pickle").write_bytes(pickle.dumps(base.to(torch.bfloat16), protocol=4))
(OUT / "torch_f16_t_p4.pickle").write_bytes(pickle.dumps(base.half().t(), protocol=4))
(OUT / "torch_f8_p4.pickle").write_bytes(pickle.dumps(base.to(torch.float8_e4m3fn), protocol=4))
(OUT / "torch_param_p4.pickle").write_bytes(pickle.dumps({"w": torch.nn.Parameter(base), "n": 3}, protocol=4))
(OUT / "torch_save.pt").write_bytes(saved(base, zipped=True))
(OUT / "torch_save_legacy.pt").write_bytes(saved(base, zipped=False))
