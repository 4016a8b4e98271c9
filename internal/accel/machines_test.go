package accel_test

import "muster/internal/accel/acceltest"

// Short names for the machines of the tests.
type (
	tree      = acceltest.Tree
	numaTree  = acceltest.NUMA
	boundRoot = acceltest.Bound
)

var (
	pci         = acceltest.PCI
	proc        = acceltest.Proc
	dri         = acceltest.DRI
	kfd         = acceltest.KFD
	accelClass  = acceltest.AccelClass
	nodes       = acceltest.Nodes
	control     = acceltest.Control
	bridge      = acceltest.Bridge
	gpuA        = acceltest.GPUA
	gpuB        = acceltest.GPUB
	gpuC        = acceltest.GPUC
	allOpen     = acceltest.AllOpen
	information = acceltest.Information
	mi210       = acceltest.MI210
	mi300cpx    = acceltest.MI300CPX
	hygon       = acceltest.Hygon
	davinci     = acceltest.Davinci
	ascend      = acceltest.Ascend
	metax       = acceltest.MetaX
	gaudi       = acceltest.Gaudi
	arc         = acceltest.Arc
	cambricon   = acceltest.Cambricon
	mthreads    = acceltest.MThreads
	iluvatar    = acceltest.Iluvatar
	thead       = acceltest.THead
	vendorTrees = acceltest.VendorTrees
	duo         = acceltest.Duo
	env         = acceltest.Env
	list        = acceltest.List
	spec        = acceltest.Fake
	fakeOf      = acceltest.FakeOf
)
