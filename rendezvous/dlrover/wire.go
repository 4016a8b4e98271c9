package dlrover

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
)

// maxAnswer bounds what the master may answer, in bytes.
const maxAnswer = 4 << 20

// jobUID is the metadata, or header, by which the master knows its own agents.
const jobUID = "job_uid"

// errOtherJob means that the master is that of another job.
var errOtherJob = errors.New("the master there is that of another job")

var errProtobuf = errors.New("the answer is no message of protobuf")

// wire carries one request. get returns the pickle that the master answers with, empty for none; report whether it has
// taken what was reported.
type wire interface {
	get(ctx context.Context, pickled []byte) ([]byte, error)
	report(ctx context.Context, pickled []byte) (bool, error)
	close() error
}

// sender is who a request comes from.
type sender struct {
	id     int
	kind   string
	jobUID string
}

// grpcWire speaks to service elastic.Master: rpc get(Message) returns (Message), report(Message) returns (Response).
type grpcWire struct {
	conn *grpc.ClientConn
	from sender
}

// raw is a codec for messages that are bytes already.
type raw struct{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(v any) ([]byte, error) {
	if b, is := v.([]byte); is {
		return b, nil
	}
	return nil, fmt.Errorf("internal error: a %T to send", v)
}

func (raw) Unmarshal(data []byte, v any) error {
	into, is := v.(*[]byte)
	if !is {
		return fmt.Errorf("internal error: a %T to receive", v)
	}
	*into = bytes.Clone(data)
	return nil
}

func dialGRPC(addr string, from sender) (*grpcWire, error) {
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{}), grpc.MaxCallRecvMsgSize(maxAnswer)), grpc.WithDisableServiceConfig(),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: firstPause, Multiplier: 2, Jitter: 0.2, MaxDelay: lastPause},
			MinConnectTimeout: connectTimeout,
		}))
	if err != nil {
		return nil, err
	}
	return &grpcWire{conn, from}, nil
}

// envelope is a Message: int32 node_id = 1, string node_type = 2, bytes data = 3.
func (w *grpcWire) envelope(data []byte) []byte {
	b := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), uint64(int64(int32(w.from.id))))
	b = protowire.AppendString(protowire.AppendTag(b, 2, protowire.BytesType), w.from.kind)
	return protowire.AppendBytes(protowire.AppendTag(b, 3, protowire.BytesType), data)
}

func (w *grpcWire) call(ctx context.Context, method string, data []byte) (answer []byte, err error) {
	if w.from.jobUID != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, jobUID, w.from.jobUID)
	}
	err = w.conn.Invoke(ctx, "/elastic.Master/"+method, w.envelope(data), &answer)
	if status.Code(err) == codes.Unauthenticated {
		return nil, errOtherJob
	}
	return answer, err
}

func (w *grpcWire) get(ctx context.Context, data []byte) ([]byte, error) {
	answer, err := w.call(ctx, "get", data)
	if err != nil {
		return nil, err
	}
	_, content, err := fields(answer, 3)
	return content, err
}

func (w *grpcWire) report(ctx context.Context, data []byte) (bool, error) {
	answer, err := w.call(ctx, "report", data)
	if err != nil {
		return false, err
	}
	taken, _, err := fields(answer, 0)
	return taken, err
}

func (w *grpcWire) close() error { return w.conn.Close() }

// fields reads a message of protobuf: whether the number in field 1 is not zero, and the bytes of field want.
func fields(b []byte, want protowire.Number) (first bool, content []byte, err error) {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return false, nil, errProtobuf
		}
		b = b[n:]
		switch {
		case kind == protowire.VarintType && number == 1:
			var v uint64
			v, n = protowire.ConsumeVarint(b)
			first = v != 0
		case kind == protowire.BytesType && number == want:
			content, n = protowire.ConsumeBytes(b)
		default:
			n = protowire.ConsumeFieldValue(number, kind, b)
		}
		if n < 0 {
			return false, nil, errProtobuf
		}
		b = b[n:]
	}
	return first, content, nil
}

// httpWire posts a JSON envelope to /get and /report, and is answered with a pickled BaseResponse.
type httpWire struct {
	client *http.Client
	url    string
	from   sender
}

func dialHTTP(addr string, from sender) *httpWire {
	return &httpWire{
		client: &http.Client{
			Transport: &http.Transport{ResponseHeaderTimeout: time.Minute, MaxIdleConnsPerHost: 4, DisableCompression: true},
			CheckRedirect: func(*http.Request, []*http.Request) error {
				return errors.New("a master sends nobody elsewhere")
			},
		},
		url: "http://" + addr, from: from,
	}
}

func (w *httpWire) call(ctx context.Context, path string, data []byte) (object, error) {
	body, err := json.Marshal(map[string]any{
		"node_id": w.from.id, "node_type": w.from.kind, "data": base64.StdEncoding.EncodeToString(data),
	})
	if err != nil {
		return object{}, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url+path, bytes.NewReader(body))
	if err != nil {
		return object{}, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json")
	r.Header[jobUID] = []string{w.from.jobUID}
	answer, err := w.client.Do(r)
	if err != nil {
		return object{}, err
	}
	defer func() { _ = answer.Body.Close() }()
	content, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer+1))
	switch {
	case err != nil:
		return object{}, err
	case len(content) > maxAnswer:
		return object{}, fmt.Errorf("the answer is longer than %d bytes", maxAnswer)
	case answer.StatusCode == http.StatusNotAcceptable:
		return object{}, errOtherJob
	case answer.StatusCode != http.StatusOK:
		return object{}, fmt.Errorf("it answers with status %s: %.200q", answer.Status, content)
	}
	return unpickled(content, "BaseResponse")
}

func (w *httpWire) get(ctx context.Context, data []byte) ([]byte, error) {
	o, err := w.call(ctx, "/get", data)
	if err != nil {
		return nil, err
	}
	return o.bytes("data")
}

func (w *httpWire) report(ctx context.Context, data []byte) (bool, error) {
	o, err := w.call(ctx, "/report", data)
	if err != nil {
		return false, err
	}
	taken, is := o.attrs["success"].(bool)
	if !is {
		return false, o.wrong("success", "a bool")
	}
	return taken, nil
}

func (w *httpWire) close() error {
	w.client.CloseIdleConnections()
	return nil
}
