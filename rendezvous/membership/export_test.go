package membership

// Sealed reports whether value is what an agent of the job runID with token has written under key.
func Sealed(runID string, token []byte, key string, value []byte) bool {
	_, _, err := newCodec(runID, token, "").openBytes(key, value)
	return err == nil
}

// Seal returns body as an agent of the job runID with token writes it under key.
func Seal(runID string, token []byte, writer, key string, body []byte) []byte {
	return newCodec(runID, token, writer).sealBytes(key, body)
}

// CheckLosses reads what a record says of lost nodes.
func CheckLosses(text string) error {
	_, err := parseLosses(text)
	return err
}
