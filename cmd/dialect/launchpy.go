package dialect

// TorchLaunch reads a command line of python -m torch.distributed.launch, the older form of torchrun (PyTorch 2.15.0,
// torch/distributed/launch.py): the same flags and --use-env. Without --use-env each worker finds its local rank in
// front of its own arguments, as --local-rank=N.
func TorchLaunch(inv Invocation) (Request, error) {
	w := new(torchrunWords)
	return torchrun(inv, launchParser(w), w, nil)
}

func launchParser(w *torchrunWords) *parser {
	p := torchrunParser("torch.distributed.launch", w)
	p.options = append(p.options, option{
		name: "use-env", word: &w.useEnv, kind: kindFlag, group: groupCommand,
		help: "Tell workers their local rank in LOCAL_RANK only, not also as --local-rank=N in front of the script's arguments.",
	})
	p.help = func() string { return p.helpText(torchLaunchAbout) }
	return p
}
