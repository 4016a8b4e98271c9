package tcpstore_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"muster/internal/testutil"
	"muster/rendezvous/tcpstore"
)

// TestStoreOfOneUser: loopback has no users, and a store that is meant for one user's processes serves no others over it.
func TestStoreOfOneUser(t *testing.T) {
	const set = `exec 3<>/dev/tcp/127.0.0.1/$0 && printf '\0\316\367\205\074\001\001\0\0\0\0\0\0\0k\001\0\0\0\0\0\0\0v\015ping' >&3 && [ "$(head -c 4 <&3)" = ping ]`
	for _, own := range []bool{true, false} {
		t.Run(strconv.FormatBool(own), func(t *testing.T) {
			var log testutil.Buffer
			s, err := tcpstore.Listen(tcpstore.ServerConfig{OwnUser: own, Log: zerolog.New(zerolog.SyncWriter(&log))})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			friend := dialHello(t, s)
			friend.alive()
			err = testutil.Stranger(t, "bash", "-c", set, strconv.Itoa(s.Port())).Run()
			if served := err == nil; served == own {
				t.Errorf("another user was served: %v (%v)", served, err)
			}
			want := str("v")
			if own {
				want = str("")
			}
			friend.ask(opGet+str("k"), want)
			if told := strings.Contains(log.String(), "another user's") && strings.Contains(log.String(), `"uid":`+strconv.Itoa(testutil.StrangerID)); told != own {
				t.Errorf("the log has %q", log.String())
			}
		})
	}
}
