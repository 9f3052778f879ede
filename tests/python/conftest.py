import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def same_start():
    torch.manual_seed(0)
    torch.set_num_threads(1)
