"""Make the LoRA adapter again from its matrices in 8 bits: python unpack_chain.py PACKED ADAPTER_FOLDER"""

import sys
from pathlib import Path

from safetensors.torch import load_file, save_file

packed = load_file(sys.argv[1])
names = [name for name in packed if not name.endswith(".scale")]
tensors = {name: packed[name].float() * packed[name + ".scale"] for name in names}
Path(sys.argv[2]).mkdir(parents=True, exist_ok=True)
save_file(tensors, Path(sys.argv[2]) / "adapter_model.safetensors")
