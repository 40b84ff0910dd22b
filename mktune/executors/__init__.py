"""Ways to run a lowered plan.

cuda_graph     one CUDA graph of any number of layers, built node by node; `functions` loads kernels, `arguments` packs
               parameters, `buffers` says where they point, `torch_memory` owns what they point to
streams        the same plan as launches on several streams, live or into a graph that the caller captures;
               `issue_order` decides streams and events, `launch_config` describes a launch, `captured` captures layers
reference      the same plan by op references in torch
executable     what the first two end in: a graph of the driver that is launched, asked for its edges and freed
driver_calls   the CUDA driver, called in one place; `discovery` asks it which GPU is here
"""
