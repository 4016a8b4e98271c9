# envs: PYTHONHASHSEED=0
# envs: PYTHONHASHSEED=123
import sys
print(hash("text"), hash(b"bytes"), sys.flags.hash_randomization, list({"a", "b", "c", "d", "e"}))
