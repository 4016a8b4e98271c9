package notify

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func unhex(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(text), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// registered is the pickle of ({'eth0': [('10.0.0.5', 43121)], 'lo': [('127.0.0.1', 43121)]}, bytes(range(32))), as a
// worker under Python 3.11 writes it.
const registered = `
8005955d000000000000007d94288c0465746830945d948c0831302e302e302e35944d71a88694618c026c6f945d948c09
3132372e302e302e31944d71a8869461754320000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d
1e1f9486942e`

func b64(b []byte) []byte { return []byte(base64.StdEncoding.EncodeToString(b)) }

func sample(t testing.TB) Registration {
	t.Helper()
	reg, err := ParseRegistration(b64(unhex(t, registered)))
	if err != nil {
		t.Fatal(err)
	}
	return reg
}

func TestRegistration(t *testing.T) {
	reg := sample(t)
	want := []netip.AddrPort{netip.MustParseAddrPort("10.0.0.5:43121"), netip.MustParseAddrPort("127.0.0.1:43121")}
	if diff := cmp.Diff(want, reg.Addresses, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
	if reg.key[0] != 0 || reg.key[31] != 31 {
		t.Errorf("key %x", reg.key)
	}
	whole := unhex(t, registered)
	object := bytes.Replace(whole, []byte("\x8c\x02lo\x94"), []byte("cos\nsystem\n"), 1)
	for name, body := range map[string][]byte{
		"not base64":       []byte("*"),
		"cut":              b64(whole[:40]),
		"a number":         b64([]byte("\x80\x02K\x01.")),
		"an object inside": b64(object),
		"a call":           b64([]byte("\x80\x02cos\nsystem\n(X\x02\x00\x00\x00lstR.")),
		"a short key":      b64([]byte("\x80\x04}C\x02ab\x86.")),
		"no table":         b64([]byte("\x80\x04]C\x02ab\x86.")),
		"too long":         bytes.Repeat([]byte("A"), maxRegistration+4),
		"a name":           b64(bytes.Replace(whole, []byte("127.0.0.1"), []byte("localhost"), 1)),
		"port 0":           b64(bytes.Replace(whole, []byte("\x71\xa8"), []byte("\x00\x00"), 1)),
	} {
		if reg, err := ParseRegistration(body); err == nil {
			t.Errorf("%s: %+v", name, reg)
		}
	}
}

// The frames were accepted by horovod 0.28.1's own service.
func TestFrames(t *testing.T) {
	reg := sample(t)
	key := reg.key[:]
	at := time.Unix(1700000000, 0)
	for name, c := range map[string]struct {
		body []byte
		want string
	}{
		"removed": {hostsUpdated(at, Removed), `
			108aae3a19c48f1c4178c80fe0d3d0b107b0ae0b110ae860068d457e628100ae 59000000
			800263686f726f766f642e72756e6e65722e656c61737469632e776f726b65720a
			486f73747355706461746564526571756573740a29817d28580900000074696d657374616d704a00f1536558030000007265734b0175622e`},
		"added": {hostsUpdated(at, Added), `
			abbd0b85f80e4c5c3b47f558adbe4fb61d0a3b8fa6403362ac53aa353277a81b 59000000
			800263686f726f766f642e72756e6e65722e656c61737469632e776f726b65720a
			486f73747355706461746564526571756573740a29817d28580900000074696d657374616d704a00f1536558030000007265734b0275622e`},
		"mixed": {hostsUpdated(at, Mixed), `
			1cd9725da074a6c6bb9d61a3328d5bdabf130920360e2ac83f31f47c76e5c5fb 59000000
			800263686f726f766f642e72756e6e65722e656c61737469632e776f726b65720a
			486f73747355706461746564526571756573740a29817d28580900000074696d657374616d704a00f1536558030000007265734b0375622e`},
	} {
		if got, want := frame(key, c.body), unhex(t, c.want); !bytes.Equal(got, want) {
			t.Errorf("%s:\n got %x\nwant %x", name, got, want)
		}
	}
	late := hostsUpdated(time.Unix(1<<31, 0), Added)
	if !bytes.Contains(late, unhex(t, "8a080000008000000000")) {
		t.Errorf("after 2038: %x", late)
	}
}

// ackFrame is a worker's answer under Python 3.8 or later, with the key of the sample.
const ackFrame = `c41edba9650bd7f1bc648117db6dcbd46d4aaf63984f071b554bf122cb3a3418 44000000
	80059539000000000000008c22686f726f766f642e72756e6e65722e636f6d6d6f6e2e7574696c2e6e6574776f726b
	948c0b41636b526573706f6e73659493942981942e`

// worker is a notification service that answers each connection with the next of its answers and closes it.
func worker(t *testing.T, answers ...[]byte) (Registration, <-chan []byte) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan []byte, len(answers))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, answer := range answers {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			head := make([]byte, 36)
			_, _ = io.ReadFull(conn, head)
			body := make([]byte, int(head[32])+int(head[33])<<8)
			_, _ = io.ReadFull(conn, body)
			asked <- body
			_, _ = conn.Write(answer)
			conn.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	reg := sample(t)
	reg.Addresses = []netip.AddrPort{l.Addr().(*net.TCPAddr).AddrPort()}
	return reg, asked
}

func TestTell(t *testing.T) {
	ack := unhex(t, ackFrame)
	forged := bytes.Clone(ack)
	forged[0]++
	reg, asked := worker(t, nil, forged, ack)
	if err := Tell(t.Context(), &net.Dialer{}, reg, time.Unix(1700000000, 0), Added); err != nil {
		t.Fatalf("a worker that answers at the third try: %v", err)
	}
	if got := <-asked; !bytes.Equal(got, hostsUpdated(time.Unix(1700000000, 0), Added)) {
		t.Errorf("asked %x", got)
	}

	// A closed port, then an impostor without the key, then the worker.
	reg, _ = worker(t, ack)
	impostor, _ := worker(t, forged)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := closed.Addr().(*net.TCPAddr).AddrPort()
	closed.Close()
	reg.Addresses = []netip.AddrPort{nobody, impostor.Addresses[0], reg.Addresses[0]}
	if err := Tell(t.Context(), &net.Dialer{}, reg, time.Unix(1700000000, 0), Mixed); err != nil {
		t.Errorf("a worker at its third address: %v", err)
	}

	reg, _ = worker(t, forged, forged, forged)
	if err := Tell(t.Context(), &net.Dialer{}, reg, time.Unix(1700000000, 0), Mixed); err == nil ||
		!strings.Contains(err.Error(), "not signed") {
		t.Errorf("an impostor: %v", err)
	}
	reg, _ = worker(t, ack, ack, ack)
	if err := reg.exchange(t.Context(), &net.Dialer{}, hostsUpdated(time.Unix(1700000000, 0), Mixed), "PingResponse"); err == nil ||
		!strings.Contains(err.Error(), "PingResponse") {
		t.Errorf("an answer of another class: %v", err)
	}
	long := append(bytes.Clone(ack[:32]), 0xff, 0xff, 0xff, 0x7f)
	if _, err := readFrame(bytes.NewReader(long), reg.key[:]); err == nil || !strings.Contains(err.Error(), "larger") {
		t.Errorf("a hostile length: %v", err)
	}
}

func FuzzRegistration(f *testing.F) {
	f.Add(unhex(f, registered))
	f.Add([]byte("\x80\x02cos\nsystem\n(X\x02\x00\x00\x00lstR."))
	f.Add([]byte("\x80\x04]\x94h\x00a."))
	f.Fuzz(func(t *testing.T, pickle []byte) {
		reg, err := ParseRegistration(b64(pickle))
		if err != nil {
			return
		}
		for _, a := range reg.Addresses {
			if !a.IsValid() || a.Port() == 0 {
				t.Fatalf("%v of %x", a, pickle)
			}
		}
	})
}

func FuzzFrame(f *testing.F) {
	f.Add(unhex(f, ackFrame))
	f.Fuzz(func(t *testing.T, b []byte) {
		reg := sample(t)
		key := reg.key[:]
		body, err := readFrame(bytes.NewReader(b), key)
		if err == nil && !bytes.Equal(frame(key, body), b[:36+len(body)]) {
			t.Fatalf("%x", b)
		}
	})
}
