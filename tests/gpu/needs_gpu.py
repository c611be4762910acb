"""Skips a file of tests without a GPU. Imported first, in place of what the tests import."""

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU, and torch finds none", allow_module_level=True)
