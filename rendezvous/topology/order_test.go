package topology_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"muster/rendezvous/topology"
)

// place returns the switches of a node, highest first, so that equal beginnings are shared switches.
func place(topo *topology.Topology, n topology.Node) []string {
	up := topo.Switches(n.Addrs...)
	slices.Reverse(up)
	return up
}

type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

// checkOrder checks what holds for every order.
func checkOrder(t failer, topo *topology.Topology, nodes []topology.Node, order []int) {
	t.Helper()
	sorted := slices.Sorted(slices.Values(order))
	for i, n := range sorted {
		if i != n || len(order) != len(nodes) {
			t.Fatalf("%v is no permutation of %d nodes", order, len(nodes))
		}
	}
	seen := make(map[string]int) // the last rank under a switch, by its path
	unnamed, last := len(nodes), none
	for r, i := range order {
		path := place(topo, nodes[i])
		if path == nil {
			unnamed = min(unnamed, r)
			if !nodes[i].Survivor {
				if last != none && last > i {
					t.Fatalf("%v: newcomers that the file does not name do not come in their order", order)
				}
				last = i
			}
		} else if unnamed < r {
			t.Fatalf("%v: %v comes after a node that the file does not name", order, path)
		}
		for level := range path {
			at := strings.Join(path[:level+1], " ")
			if before, ok := seen[at]; ok && before != r-1 {
				t.Fatalf("%v: ranks %d and %d are under switch %s, not all between", order, before, r, at)
			}
			seen[at] = r
		}
	}
}

func kept(nodes []topology.Node, order []int) (n int) {
	for r, i := range order {
		if nodes[i].Survivor && nodes[i].Rank == r {
			n++
		}
	}
	return n
}

// nextRound returns the nodes of order as survivors, less those that die says.
func nextRound(nodes []topology.Node, order []int, dies func(topology.Node) bool) []topology.Node {
	var next []topology.Node
	for r, i := range order {
		if n := nodes[i]; !dies(n) {
			next = append(next, topology.Node{Addrs: n.Addrs, Survivor: true, Rank: r})
		}
	}
	return next
}

func fresh(ips ...string) []topology.Node {
	var nodes []topology.Node
	for _, ip := range ips {
		nodes = append(nodes, topology.Node{Addrs: addrs(ip)})
	}
	return nodes
}

// TestVectorsOfDLRover are the order of its DpTopologySorter for ten nodes under three switches (its
// test_net_topology.py) and the example of MetaX's guide, under four.
func TestVectorsOfDLRover(t *testing.T) {
	for switches, want := range map[int][]int{
		3:  {0, 3, 6, 9, 1, 4, 7, 2, 5, 8},
		4:  {0, 4, 8, 1, 5, 9, 2, 6, 3, 7},
		1:  {0, 1, 2, 3, 4, 5, 6, 7, 8, 9},
		10: {0, 1, 2, 3, 4, 5, 6, 7, 8, 9},
	} {
		var file strings.Builder
		var nodes []topology.Node
		for i := range 10 {
			ip := fmt.Sprintf("192.168.0.%d", i)
			fmt.Fprintf(&file, "asw-%d psw-0 %s\n", i%switches, ip)
			nodes = append(nodes, fresh(ip)...)
		}
		topo := parse(t, file.String())
		if diff := cmp.Diff(want, topo.Order(nodes)); diff != "" {
			t.Errorf("%d switches (-want +got):\n%s", switches, diff)
		}
	}
}

// TestOrder is written in letters: "a0" is a node under switch a, "x0" one that the file does not name, a number before
// the colon is the rank that a survivor had.
func TestOrder(t *testing.T) {
	// Switches a, b, c, d are under p, e and f under q, each with nodes 0 to 3.
	var file strings.Builder
	ip := func(name string) netip.Addr {
		return netip.AddrFrom4([4]byte{10, 0, name[0], name[1] - '0'})
	}
	for i, asw := range "abcdef" {
		for n := range 4 {
			name := fmt.Sprintf("%c%d", asw, n)
			fmt.Fprintf(&file, "%c %c %v\n", asw, "ppppqq"[i], ip(name))
		}
	}
	topo := parse(t, file.String())
	for _, tc := range []struct{ name, nodes, want string }{
		{"nobody", "", ""},
		{"psw before asw", "a0 e0 b0 f0 a1 e1", "a0 a1 b0 e0 e1 f0"},
		{"unnamed come last", "x1 a0 x0 e0 a1", "a0 a1 e0 x1 x0"},
		{"only unnamed", "x1 x0 x2", "x1 x0 x2"},
		{"the same again", "0:b0 1:b1 2:a0 3:x1 4:x0", "b0 b1 a0 x1 x0"},
		{"the same in another order", "4:x0 2:a0 1:b1 0:b0 3:x1", "b0 b1 a0 x1 x0"},
		{"a replacement under the same switch", "0:a0 2:a2 3:b0 4:b1 a3", "a0 a3 a2 b0 b1"},
		{"a replacement under another switch", "0:a0 2:a2 3:b0 4:b1 b2", "a0 a2 b2 b0 b1"},
		{"a node less", "0:a0 2:a2 3:b0 4:b1 5:b2", "a0 a2 b2 b0 b1"},
		{"a node more", "0:a0 1:a1 2:b0 3:b1 a2", "a0 a1 a2 b1 b0"},
		{"the last goes", "0:a0 1:a1 2:b0", "a0 a1 b0"},
		{"a switch dies, the last moves into the gap", "2:b0 3:b1 4:c0 5:c1 6:d0 7:d1", "d0 d1 b0 b1 c0 c1"},
		{"a switch dies, unnamed cannot move in", "2:b0 3:b1 4:x0 5:x1", "b0 b1 x0 x1"},
		{"a switch dies, another takes its place", "2:b0 3:b1 4:c0 5:c1 d0 d1", "d0 d1 b0 b1 c0 c1"},
		{"a switch dies, the one that fits takes its place", "2:b0 3:b1 4:c0 5:c1 d0 d1 d2 a3 a2", "a3 a2 b0 b1 c0 c1 d0 d1 d2"},
		{"a switch dies, one that fits better than none takes its place", "3:b0 4:b1 5:b2 d0 d1", "d0 d1 b2 b0 b1"},
		{"a switch dies, two smaller ones take its place", "2:b0 3:b1 4:c0 5:c1 d0 a3", "d0 a3 b0 b1 c0 c1"},
		{
			"nodes of a switch that could keep a rank give way to more that can",
			"0:a0 3:b0 4:b1 5:b2 6:b3 7:c0 8:c1 9:c2 10:c3 11:d0 12:d1 13:d2", "a0 d0 d1 d2 b1 b2 b3 b0 c1 c2 c3 c0",
		},
		{"a psw dies", "8:e0 9:e1 10:e2 11:e3 x0", "e0 e1 e2 e3 x0"},
		{"a psw dies, another takes its place", "4:e0 5:e1 6:f0 7:f1 a0 a1 b0 c0", "a0 a1 b0 c0 e0 e1 f0 f1"},
		{"new switch under the first psw", "0:a0 1:a1 2:e0 3:e1 4:e2 5:e3 b0", "a0 a1 b0 e1 e2 e3 e0"},
		{"a rank that two had", "0:a0 0:a1 1:a2", "a0 a2 a1"},
		{"a rank beyond the world", "900:a0 0:a1 -1:a2", "a1 a0 a2"},
		{"ranks that the topology does not allow", "0:a0 1:b0 2:a1 3:b1", "a0 a1 b0 b1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var nodes []topology.Node
			names := strings.Fields(tc.nodes)
			for i, name := range names {
				rank, name, survivor := strings.Cut(name, ":")
				if !survivor {
					name = rank
				}
				n := topology.Node{Addrs: []netip.Addr{ip(name)}, Survivor: survivor}
				if survivor {
					fmt.Sscan(rank, &n.Rank)
				}
				names[i], nodes = name, append(nodes, n)
			}
			order := topo.Order(nodes)
			var got []string
			for _, i := range order {
				got = append(got, names[i])
			}
			if want := strings.Fields(tc.want); !slices.Equal(got, want) {
				t.Errorf("%s\n got %v\nwant %v", tc.nodes, got, want)
			}
			checkOrder(t, topo, nodes, order)
		})
	}
}

func TestSeveralAddresses(t *testing.T) {
	topo := parse(t, "a p 10.0.0.1\nb p 10.0.0.2\na p 2001:db8::3\n")
	nodes := []topology.Node{
		{Addrs: addrs("192.168.7.1", "::ffff:10.0.0.1")},
		{Addrs: addrs("192.168.7.9")},
		{Addrs: addrs("10.0.0.2", "10.0.0.1")}, // under both: the first counts
		{},
		{Addrs: addrs("2001:db8:0::3%eth0")},
		{Addrs: addrs("10.0.0.1")}, // a second agent on the first node
	}
	if diff := cmp.Diff([]int{0, 4, 5, 2, 1, 3}, topo.Order(nodes)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// drawn is a random network with nodes in it.
type drawn struct {
	topo  *topology.Topology
	nodes []topology.Node // newcomers all, in random order, some of them not in the file
	file  string
}

func drawNetwork(t *rapid.T, levels, most int) drawn {
	var b strings.Builder
	var d drawn
	ip := netip.MustParseAddr("10.0.0.1")
	names := 0
	var grow func(path []string)
	grow = func(path []string) {
		if len(path) < levels {
			for range rapid.IntRange(1, most).Draw(t, "switches") {
				names++
				grow(append([]string{fmt.Sprintf("s%d", names)}, path...))
			}
			return
		}
		for range rapid.IntRange(1, 4).Draw(t, "nodes") {
			fmt.Fprintln(&b, path[0], path[1], ip, strings.Join(path[2:], " "))
			d.nodes = append(d.nodes, topology.Node{Addrs: []netip.Addr{ip}})
			ip = ip.Next()
		}
	}
	grow(nil)
	for range rapid.IntRange(0, 3).Draw(t, "unnamed") {
		d.nodes = append(d.nodes, topology.Node{Addrs: []netip.Addr{ip}})
		ip = ip.Next()
	}
	d.file = b.String()
	var err error
	if d.topo, err = topology.Parse("topo.txt", strings.NewReader(d.file)); err != nil {
		t.Fatal(err)
	}
	d.nodes = rapid.Permutation(d.nodes).Draw(t, "order")
	return d
}

// TestOrderInvariants leads random networks through random rounds.
func TestOrderInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawNetwork(t, rapid.IntRange(2, 4).Draw(t, "levels"), 3)
		away := d.nodes // nodes that are not in the round
		var nodes []topology.Node
		for range rapid.IntRange(1, 5).Draw(t, "rounds") {
			var still []topology.Node
			for _, n := range away {
				if rapid.Bool().Draw(t, "comes") {
					nodes = append(nodes, topology.Node{Addrs: n.Addrs})
				} else {
					still = append(still, n)
				}
			}
			away = still
			order := d.topo.Order(nodes)
			checkOrder(t, d.topo, nodes, order)
			if again := d.topo.Order(nodes); !slices.Equal(order, again) {
				t.Fatalf("%v, and then %v", order, again)
			}
			if plain := plainOrder(d.topo, nodes); kept(nodes, order) < kept(nodes, plain) {
				t.Fatalf("%v keeps %d ranks, %v would keep %d", order, kept(nodes, order), plain, kept(nodes, plain))
			}
			next := nextRound(nodes, order, func(topology.Node) bool { return false })
			// Agents list the survivors in any order, and get the same ranks; where nothing changes, everybody keeps
			// his own.
			mixed := rapid.Permutation(next).Draw(t, "mixed")
			for r, i := range d.topo.Order(mixed) {
				if mixed[i].Rank != r {
					t.Fatalf("rank %d goes to who had %d, and nobody came or went", r, mixed[i].Rank)
				}
			}
			nodes = nil
			for _, n := range mixed {
				if rapid.IntRange(0, 4).Draw(t, "dies") == 0 {
					away = append(away, n)
				} else {
					nodes = append(nodes, n)
				}
			}
		}
	})
}

// TestReplacedNodesTakeTheSlots: where every dead node is replaced under its own switch, and no switch has lost all,
// the survivors keep their ranks.
func TestReplacedNodesTakeTheSlots(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawNetwork(t, 3, 3)
		order := d.topo.Order(d.nodes)
		next := nextRound(d.nodes, order, func(topology.Node) bool { return false })
		under := make(map[string][]int) // ranks by switches
		for r, n := range next {
			at := strings.Join(place(d.topo, n), " ")
			under[at] = append(under[at], r)
		}
		survivors := len(next)
		for _, at := range slices.Sorted(maps.Keys(under)) {
			lasts := rapid.SampledFrom(under[at]).Draw(t, "lasts")
			for _, r := range under[at] {
				if r != lasts && rapid.Bool().Draw(t, "dies") {
					next[r] = topology.Node{Addrs: next[r].Addrs}
					survivors--
				}
			}
		}
		next = rapid.Permutation(next).Draw(t, "mixed")
		order = d.topo.Order(next)
		checkOrder(t, d.topo, next, order)
		if n := kept(next, order); n != survivors {
			t.Fatalf("%d of %d survivors keep their ranks", n, survivors)
		}
	})
}

// TestLostSwitches: of access switches with the same number of nodes some die. Who can stay within the world stays.
func TestLostSwitches(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b strings.Builder
		var nodes []topology.Node
		switches, size := rapid.IntRange(1, 12).Draw(t, "switches"), rapid.IntRange(1, 5).Draw(t, "size")
		for i := range switches * size {
			ip := fmt.Sprintf("10.0.0.%d", i+1)
			fmt.Fprintf(&b, "a%d p %s\n", i/size, ip)
			nodes = append(nodes, fresh(ip)...)
		}
		topo, err := topology.Parse("topo.txt", strings.NewReader(b.String()))
		if err != nil {
			t.Fatal(err)
		}
		dead := make(map[string]bool)
		for i := range switches {
			dead[fmt.Sprintf("a%d", i)] = rapid.IntRange(0, 3).Draw(t, "dies") == 0
		}
		next := nextRound(nodes, topo.Order(nodes), func(n topology.Node) bool { return dead[topo.Switches(n.Addrs...)[0]] })
		within := 0
		for _, n := range next {
			if n.Rank < len(next) {
				within++
			}
		}
		order := topo.Order(next)
		checkOrder(t, topo, next, order)
		if n := kept(next, order); n != within {
			t.Fatalf("%d keep their ranks, %d could: %v", n, within, order)
		}
	})
}

// TestWithoutTopology: a survivor keeps its rank while it is within the world; the others fill what is left.
func TestWithoutTopology(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ranks := rapid.Permutation([]int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}).Draw(t, "ranks")
		var nodes []topology.Node
		for _, r := range ranks[:rapid.IntRange(0, 10).Draw(t, "nodes")] {
			nodes = append(nodes, topology.Node{Rank: r, Survivor: rapid.Bool().Draw(t, "survivor")})
		}
		var topo *topology.Topology
		order := topo.Order(nodes)
		checkOrder(t, topo, nodes, order)
		for i, n := range nodes {
			if n.Survivor && n.Rank < len(nodes) && order[n.Rank] != i {
				t.Fatalf("%v: node %d had rank %d", order, i, n.Rank)
			}
		}
	})
}

// TestNearTheBest compares with the best of all orders, where there are few enough to try. Over 3,000 networks it keeps
// 98.6 % of the ranks that those keep; 100 random ones are asked for less.
func TestNearTheBest(t *testing.T) {
	var got, best int
	rapid.Check(t, func(t *rapid.T) {
		d := drawNetwork(t, 2, 3)
		first := d.nodes[:len(d.nodes)/2+len(d.nodes)/4]
		next := nextRound(first, d.topo.Order(first), func(topology.Node) bool { return rapid.IntRange(0, 7).Draw(t, "dies") == 0 })
		for _, n := range d.nodes[len(first):] {
			if rapid.Bool().Draw(t, "comes") {
				next = append(next, n)
			}
		}
		order := d.topo.Order(next)
		mine, limit := kept(next, order), bestKept(d.topo, next)
		if mine > limit {
			t.Fatalf("%d ranks kept, more than any order can: %d", mine, limit)
		}
		got, best = got+mine, best+limit
	})
	t.Logf("%d ranks kept, %d by the best orders", got, best)
	if got*100 < best*90 {
		t.Errorf("%d ranks kept, %d by the best orders", got, best)
	}
}

func BenchmarkOrder(b *testing.B) {
	var file strings.Builder
	var nodes []topology.Node
	ip := netip.MustParseAddr("10.0.0.1")
	for i := range 4096 {
		fmt.Fprintf(&file, "a%d p%d %v\n", i/16, i/256, ip)
		nodes = append(nodes, topology.Node{Addrs: []netip.Addr{ip}, Survivor: true, Rank: i})
		ip = ip.Next()
	}
	topo := parse(b, file.String())
	nodes = nodes[16:] // the first switch has died
	b.ReportAllocs()
	for b.Loop() {
		topo.Order(nodes)
	}
}
