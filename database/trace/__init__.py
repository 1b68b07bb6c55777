"""Chrome traces (of torch.profiler, of torch_npu.profiler) as tables."""
