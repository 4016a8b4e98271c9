package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"

	"muster/internal/durable"
	"muster/internal/errhint"
)

// maxErrorFile is how much of a worker's error file is read, in bytes. PyTorch's are a few KiB.
const maxErrorFile = 1 << 20

// workerError is what a worker wrote into its TORCHELASTIC_ERROR_FILE before it died.
type workerError struct {
	Path string
	// Message is one sentence, Traceback the call stack; either may be empty.
	Message, Traceback string
	// Problem says why the file could not be used, empty where it could.
	Problem string
}

// readErrorFile reads a worker's error file, nil where there is none. The worker writes it while it dies: whatever is
// wrong with it becomes a Problem and never hides the failure itself.
//
// The form is that of PyTorch's torch/distributed/elastic/multiprocessing/errors (2.15.0, read): {"message":
// {"message": "...", "extraInfo": {"py_callstack": "...", "timestamp": "<seconds>"}}}, or {"message": "..."}.
func readErrorFile(path string) *workerError {
	if path == "" {
		return nil
	}
	e := &workerError{Path: path}
	text, err := readSmallFile(path, maxErrorFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		e.Problem = err.Error()
		return e
	case len(bytes.TrimSpace(text)) == 0:
		return nil // made, but never written
	}
	var file struct{ Message json.RawMessage }
	if err := json.Unmarshal(text, &file); err != nil {
		e.Problem = fmt.Sprintf("no JSON object: %v", err)
		return e
	}
	var object struct {
		Message   json.RawMessage
		ExtraInfo json.RawMessage
	}
	var extra struct {
		Callstack json.RawMessage `json:"py_callstack"`
	}
	// Each part is taken on its own: one that is missing or of a strange type does not spoil the others.
	if json.Unmarshal(file.Message, &e.Message) != nil {
		_ = json.Unmarshal(file.Message, &object)
		_ = json.Unmarshal(object.Message, &e.Message)
		_ = json.Unmarshal(object.ExtraInfo, &extra)
		_ = json.Unmarshal(extra.Callstack, &e.Traceback)
	}
	if e.Message == "" && e.Traceback == "" {
		e.Problem = "it has no message"
	}
	return e
}

// lines returns what the error file says: the call stack, and the message where that does not end with it.
func (e *workerError) lines() []string {
	text := strings.TrimRight(e.Traceback, "\n")
	if !strings.HasSuffix(text, e.Message) {
		text = strings.TrimLeft(text+"\n"+e.Message, "\n")
	}
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

// readSmallFile reads a regular file of at most limit bytes. It never blocks on what is none, such as a FIFO.
func readSmallFile(path string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(text)) > limit {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, limit)
	}
	return text, nil
}

// CopyErrorFile hands the root cause's error file on to whoever started muster with a TORCHELASTIC_ERROR_FILE of its
// own, with the worker's exit code added as message.errorCode: negative for signals, as in Python. A file whose message
// is no object is copied as it is; one on another node is written anew. Nothing is written when the worker left no
// error file.
func (r *Report) CopyErrorFile(to string) error {
	if r.Root.Error == nil || r.Root.Elsewhere && r.Root.Error.Problem != "" {
		return nil
	}
	var text []byte
	var err error
	if r.Root.Elsewhere {
		text, err = r.Root.errorFileAnew()
	} else {
		text, err = readSmallFile(r.Root.ErrorFile, maxErrorFile)
	}
	if err == nil {
		text, err = addErrorCode(text, r.Root.exitcode())
	}
	if err == nil {
		err = durable.Replace(to, text, 0o644)
	}
	if err != nil {
		err = fmt.Errorf("cannot copy the error file of rank %d: %w", r.Root.Rank, err)
		return errhint.With(err, "is the directory of TORCHELASTIC_ERROR_FILE there and writable?")
	}
	return nil
}

// errorFileAnew makes an error file of what another node said about its own.
func (f *Failure) errorFileAnew() ([]byte, error) {
	extra := map[string]string{"py_callstack": f.Error.Traceback, "timestamp": strconv.FormatInt(f.At.Unix(), 10)}
	return json.Marshal(map[string]any{"message": map[string]any{"message": f.Error.Message, "extraInfo": extra}})
}

func addErrorCode(text []byte, code int) ([]byte, error) {
	var file map[string]json.RawMessage
	if err := json.Unmarshal(text, &file); err != nil {
		return nil, fmt.Errorf("no JSON object: %w", err)
	}
	var message map[string]json.RawMessage
	if err := json.Unmarshal(file["message"], &message); err != nil || message == nil {
		return text, nil //nolint:nilerr // the string form has no place for a code
	}
	message["errorCode"] = fmt.Append(nil, code)
	var err error
	if file["message"], err = json.Marshal(message); err != nil {
		return nil, err
	}
	return json.Marshal(file)
}

// exitcode returns what Python's multiprocessing calls so: the exit code, or -n for signal n.
func (e *Exit) exitcode() int {
	if e.Signal != 0 {
		return -int(e.Signal)
	}
	return e.Code
}
