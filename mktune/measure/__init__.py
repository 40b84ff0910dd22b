"""What a plan takes and whether what it computes is right. Everything that touches the GPU runs in a worker process.

cuda_bench     the bench that a search uses: compiles ahead, asks the worker, promotes
worker, host   the process that may be killed, and what it does for one problem
compile_ahead  compiling processes
deadline       how long a candidate may take; `gpu_lock` keeps other processes of mktune off the GPU meanwhile
memory         arguments, weights and caches of every layer; results and poison of the verification build
gate           machine code against what the checks were told
admission      what must hold before plans are timed beside each other
correctness    every op against its reference, on the inputs that it really had
validation     races provoked by delays and shuffled priorities; `repeatability` whether bits repeat
span           the clock; `screening` when to stop reading it, `session` the GPU's state around it
calibration    what the clock can resolve on this GPU
promotion      ties, guards and who wins: pure logic; `narrowing` which arms need no more rounds
attribution    where a winner's gain comes from
stats          medians, intervals and paired differences
ablation       branches and PDL on the same kernels; `growth`: a workload op by op
op_bench       each op alone, beside `stream`, the limit of its bytes, and `peer`, another library's kernel
edge, stamps   what one edge is worth, and when kernels begin and end: they explain, they never score
tracing        when every CTA begins, is ready, triggers and ends; `critical_path`: what a layer's time hung on
"""
