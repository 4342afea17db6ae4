"""``sitecustomize`` of SGLang's environment: a torchvision built for CUDA then imports beside a torch for CPU.

It expects two operators of its own library to be known; they are declared here, just before its import.
"""

import importlib.abc
import sys


class _Declares(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            self.library = torch.library.Library("torchvision", "DEF")
            for operator in ("nms", "qnms"):
                self.library.define(operator + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            _kept.append(self)


_kept = []
sys.meta_path.insert(0, _Declares())
