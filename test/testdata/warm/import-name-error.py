# soak: make test has import-raises.txtar
# status: 1 1
import decimal
from json import no_such_name
