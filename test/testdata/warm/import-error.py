# soak: make test has import-raises.txtar
# args: ModuleNotFoundError
# status: 1 1
import json
import no_such_package_anywhere.part
print("never shown")
