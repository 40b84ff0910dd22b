"""Ways to run a lowered plan.

cuda_graph     one CUDA graph of any number of layers, built node by node; `arguments` packs parameters, `buffers` says
               where they point, `torch_memory` owns what they point to
reference      the same plan by op references in torch
driver_calls   the CUDA driver, called in one place; `discovery` asks it which GPU is here
"""
