"""Text and bytes of tools and kernels -> plain values. Pure functions, shared by collectors."""
