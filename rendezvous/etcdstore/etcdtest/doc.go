// Package etcdtest runs the contract of rendezvous.Store on etcdstore and the newest etcd server, which it embeds. It
// holds tests only.
package etcdtest
