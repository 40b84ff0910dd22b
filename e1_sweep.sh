python -m tests.benchmarks.score_sweep 16x65536 16x8192 64x65536 1x65536 --top 30 \
 --config 'm=16,kv=65536,kv_split=1024,q_block=4,stages=3,ahead=none|half' \
 --config 'm=16,kv=65536,kv_split=1024,q_block=8,stages=4|6|8,ahead=none|half|page' \
 --config 'm=16,kv=65536,kv_split=2048,q_block=4,stages=6,ahead=page' \
 --config 'm=16,kv=8192,kv_split=128,q_block=4|8,stages=2,ahead=none|half|page' \
 --config 'm=16,kv=8192,kv_split=256,q_block=4,stages=3,ahead=none|half|page' \
 --config 'm=16,kv=8192,kv_split=64,q_block=8,stages=2,ahead=half' \
 --config 'm=64,kv=65536,kv_split=1024,q_block=4|8,stages=4,ahead=none|half' \
 --config 'm=64,kv=65536,kv_split=2048,q_block=8,stages=4|8,ahead=half|page' \
 --config 'm=1,kv=65536,kv_split=512,q_block=1,stages=4|6|8,ahead=none|page'
