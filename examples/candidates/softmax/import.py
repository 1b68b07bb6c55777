# verdict: import
import a_package_that_nobody_has
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return a_package_that_nobody_has.softmax(x)
