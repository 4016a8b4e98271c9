package checkpointd

import "encoding/json"

func jsonText(v any) ([]byte, error) { return json.Marshal(v) }
