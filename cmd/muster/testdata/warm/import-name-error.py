# status: 1 1
# expect-warm: any
import decimal
from json import no_such_name
