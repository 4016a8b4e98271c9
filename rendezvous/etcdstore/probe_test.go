package etcdstore

import "testing"

// FuzzVersion: whatever answers where an etcd should, its version is short, or it is none.
func FuzzVersion(f *testing.F) {
	f.Add([]byte("HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{\"etcdserver\":\"3.5.16\",\"etcdcluster\":\"3.5.0\"}"))
	f.Add([]byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"etc\r\n"))
	f.Add([]byte("SSH-2.0-OpenSSH_9.2\r\n"))
	f.Fuzz(func(t *testing.T, said []byte) {
		if version, isEtcd := etcdVersion(said); isEtcd != (version != "") || len(version) > 40 {
			t.Errorf("%q: %q, %v", said, version, isEtcd)
		}
	})
}
