# workers: 2
# muster: --stdin inherit
# args: {rank} ${local_rank}
import json
import sys
print(sys.argv)
