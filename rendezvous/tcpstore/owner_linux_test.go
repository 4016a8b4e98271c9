package tcpstore_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"muster/internal/hostaddr"
	"muster/internal/testutil"
	"muster/rendezvous/tcpstore"
)

// TestStoreOfOneUser: loopback has no users, and a store that is meant for one user's processes serves no others over
// it.
func TestStoreOfOneUser(t *testing.T) {
	const set = `exec 3<>/dev/tcp/$1/$0 && ` +
		`printf '\0\316\367\205\074\001\001\0\0\0\0\0\0\0k\001\0\0\0\0\0\0\0v\015ping' >&3 && [ "$(head -c 4 <&3)" = ping ]`
	hosts := []string{"127.0.0.1"}
	for _, a := range hostaddr.All() { // it may be told to listen there
		if a.Is4() && !a.IsLoopback() {
			hosts = append(hosts, a.String())
		}
	}
	for i := range 2 * len(hosts) {
		own, host := i%2 == 0, hosts[i/2]
		t.Run(strconv.FormatBool(own)+" at "+host, func(t *testing.T) {
			var log testutil.Buffer
			s, err := tcpstore.Listen(tcpstore.ServerConfig{
				Hosts: []string{host}, OwnUser: own,
				Log: zerolog.New(zerolog.SyncWriter(&log)),
			})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			friend := dialHello(t, s)
			friend.alive()
			err = testutil.OtherUser(t, "bash", "-c", set, strconv.Itoa(s.Port()), host).Run()
			if served := err == nil; served == own {
				t.Errorf("another user was served: %v (%v)", served, err)
			}
			want := str("v")
			if own {
				want = str("")
			}
			friend.ask(opGet+str("k"), want)
			if told := strings.Contains(log.String(), "another user's") && strings.Contains(log.String(), "--store-allow 127.0.0.0/8") &&
				strings.Contains(log.String(), `"uid":`+strconv.Itoa(testutil.OtherUserID)); told != own {
				t.Errorf("the log has %q", log.String())
			}
		})
	}
}
