# -*- coding: latin-1 -*-
import json
print(ascii("üé"))
