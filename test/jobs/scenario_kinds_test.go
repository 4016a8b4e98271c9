package jobs

// scenarioKind is a kind of job file whose two workers run WORKER, and the words by which the kind says its rules.
// docs/development.md has which test covers which scenario of which kind.
type scenarioKind struct {
	name, text string
	// rules are what --set says in a scenario. A kind without an entry has no such rule. Launchers in files end their
	// workers whatever is to be cleaned up.
	rules map[string][]string
}

// Where the words of several kinds are the same.
const (
	oneRestart = "spec.runPolicy.backoffLimit=1"
	deadline5  = "spec.runPolicy.activeDeadlineSeconds=5"
)

// scenarioKinds have a shell's script as their command. The launchers in the files are muster's.
var scenarioKinds = []scenarioKind{
	{
		"PyTorchTrainingJob", `apiVersion: batch.tensorstack.dev/v1beta1
kind: PyTorchTrainingJob
metadata: {name: kinds}
spec:
  replicaSpecs:
    - type: node
      replicas: 2
      template: {spec: {containers: [{name: python, command: [sh, WORKER]}]}}
`, map[string][]string{
			"limit":     {"spec.replicaSpecs[0].restartPolicy=OnFailure", oneRestart},
			"exit code": {"spec.replicaSpecs[0].restartPolicy=ExitCode"},
			"clean all": {"spec.runPolicy.cleanUpPolicy=All"}, "clean none": {"spec.runPolicy.cleanUpPolicy=None"},
			"deadline": {deadline5},
			"debug":    {"spec.runMode.debug={enable: true, replicaSpecs: [{type: node, command: [sh, DEBUG]}]}"},
		},
	},
	{
		"ColossalAIJob", `apiVersion: batch.tensorstack.dev/v1beta1
kind: ColossalAIJob
metadata: {name: kinds}
spec:
  worker:
    replicas: 2
    procPerWorker: 1
    torchArgs: [--master_port, "PORT"]
    command: [WORKER.py]
    template: {spec: {containers: [{name: worker}]}}
`, map[string][]string{
			"clean all": {"spec.runPolicy.cleanUpWorkers=true"},
			"deadline":  {deadline5},
			"debug":     {"spec.runMode.debug={enabled: true, replicaSpecs: [{type: launcher, command: [sh, DEBUG]}]}"},
		},
	},
	{
		"AITrainingJob", `apiVersion: kongming.cce.baiudbce.com/v1
kind: AITrainingJob
metadata: {name: kinds}
spec:
  plugin: {ssh: [""], discovery: [""]}
  replicaSpecs:
    launcher:
      replicaType: master
      template:
        spec:
          containers:
            - name: aitj-0
              command: [horovodrun, -np, "2", --min-np, "2", --host-discovery-script, /etc/edl/discover_hosts.sh, sh, WORKER]
    trainer:
      replicas: 2
      template: {spec: {containers: [{name: aitj-0, command: [/bin/bash, -c, /usr/sbin/sshd && sleep infinity]}]}}
`, map[string][]string{
			"limit": {"spec.replicaSpecs.trainer.restartPolicy=OnFailure", "spec.replicaSpecs.trainer.restartLimit=1"},
			"exit code": {
				"spec.replicaSpecs.trainer.restartLimit=5",
				`spec.replicaSpecs.trainer.faultTolerantPolicy=[{exitCodes: "129,137", restartPolicy: ExitCode, restartScope: All}]`,
			},
			"clean all": {"spec.cleanPodPolicy=All"},
			"deadline":  {"spec.timeLimit=5"},
		},
	},
	{
		"AITrainingJob without a launcher", `apiVersion: kongming.cce.baiudbce.com/v1
kind: AITrainingJob
metadata: {name: kinds}
spec:
  replicaSpecs:
    trainer:
      replicas: 2
      template: {spec: {containers: [{name: aitj-0, command: [sh, WORKER]}]}}
`, map[string][]string{
			"limit": {"spec.replicaSpecs.trainer.restartPolicy=OnFailure", "spec.replicaSpecs.trainer.restartLimit=1"},
			"exit code": {
				"spec.replicaSpecs.trainer.restartLimit=5",
				`spec.replicaSpecs.trainer.faultTolerantPolicy=[{exitCodes: "129,137", restartPolicy: ExitCode, restartScope: All}]`,
			},
			"node loss": {"spec.replicaSpecs.trainer.restartPolicy=OnNodeFail"},
			"clean all": {"spec.cleanPodPolicy=All"}, "clean none": {"spec.cleanPodPolicy=None"},
			"deadline": {"spec.timeLimit=5"},
		},
	},
	{
		"ElasticJob", `apiVersion: elastic.iml.github.io/v1alpha1
kind: ElasticJob
metadata: {name: kinds}
spec:
  replicaSpecs:
    worker:
      replicas: 2
      restartCount: 0
      template: {spec: {containers: [{name: main, command: [sh, WORKER]}]}}
`, map[string][]string{
			"limit":     {"spec.replicaSpecs.worker.restartCount=1"},
			"node loss": {"spec.replicaSpecs.worker.restartCount=1"},
		},
	},
	{
		"PyTorchJob", `apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: kinds}
spec:
  pytorchReplicaSpecs:
    Master: &replica {restartPolicy: Never, template: {spec: {containers: [{name: pytorch, command: [sh, WORKER]}]}}}
    Worker: *replica
`, map[string][]string{
			"limit": {
				"spec.pytorchReplicaSpecs.Master.restartPolicy=OnFailure", "spec.pytorchReplicaSpecs.Worker.restartPolicy=OnFailure",
				oneRestart,
			},
			"exit code": {
				"spec.pytorchReplicaSpecs.Master.restartPolicy=ExitCode", "spec.pytorchReplicaSpecs.Worker.restartPolicy=ExitCode",
			},
			"node loss": {
				"spec.pytorchReplicaSpecs.Master.restartPolicy=OnFailure", "spec.pytorchReplicaSpecs.Worker.restartPolicy=OnFailure",
			},
			"clean all": {"spec.runPolicy.cleanPodPolicy=All"}, "clean none": {"spec.runPolicy.cleanPodPolicy=None"},
			"deadline": {deadline5},
		},
	},
	{
		"MPIJob", `apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata: {name: kinds}
spec:
  mpiReplicaSpecs:
    Launcher: {restartPolicy: Never, template: {spec: {containers: [{name: mpi, command: [mpirun, -np, "2", sh, WORKER]}]}}}
    Worker: {replicas: 2, template: {spec: {containers: [{name: mpi}]}}}
`, map[string][]string{
			"limit":     {"spec.mpiReplicaSpecs.Launcher.restartPolicy=OnFailure", oneRestart},
			"clean all": {"spec.runPolicy.cleanPodPolicy=All"},
			"deadline":  {deadline5},
		},
	},
	{
		"TrainJob", `apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: kinds}
spec:
  runtimeRef: {name: torch-distributed}
  trainer: {numNodes: 2, command: [torchrun, --no-python, sh, WORKER]}
`, nil,
	},
	{
		"JobSet", `apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: kinds}
spec:
  failurePolicy: {maxRestarts: 0}
  replicatedJobs:
    - name: workers
      template:
        spec:
          parallelism: 2
          completions: 2
          completionMode: Indexed
          template: {spec: {containers: [{command: [sh, WORKER]}]}}
`, map[string][]string{
			"limit": {"spec.failurePolicy.maxRestarts=1"},
			"exit code": {
				"spec.failurePolicy.maxRestarts=5",
				"spec.replicatedJobs[0].template.spec.podFailurePolicy.rules=" +
					"[{action: FailJob, onExitCodes: {operator: In, values: [7]}}]",
			},
			"deadline": {"spec.replicatedJobs[0].template.spec.activeDeadlineSeconds=5"},
		},
	},
	{
		"JobSet of torchrun", `apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: kinds}
spec:
  failurePolicy: {maxRestarts: 0}
  network: {enableDNSHostnames: true}
  replicatedJobs:
    - name: workers
      template:
        spec:
          parallelism: 2
          completions: 2
          completionMode: Indexed
          template:
            spec:
              containers:
                - command: [/bin/bash, -c]
                  args:
                    - >-
                      exec torchrun --nnodes=2 --nproc-per-node=1 --node-rank=$JOB_COMPLETION_INDEX
                      --master-addr=kinds-workers-0-0.kinds --master-port=PORT --no-python sh WORKER
`, map[string][]string{"limit": {"spec.failurePolicy.maxRestarts=1"}},
	},
	{
		"AITrainingJob of torchrun", `apiVersion: kongming.cce.baiudbce.com/v1
kind: AITrainingJob
metadata: {name: kinds}
spec:
  replicaSpecs:
    trainer:
      replicas: 2
      template:
        spec:
          containers:
            - name: aitj-0
              command:
                - torchrun
                - --nnodes=2
                - --nproc-per-node=1
                - --node-rank=$(TRAININGJOB_REPLICA_INDEX)
                - --master-addr=kinds-trainer-0
                - --master-port=PORT
                - --no-python
                - sh
                - WORKER
`, map[string][]string{
			"limit": {"spec.replicaSpecs.trainer.restartPolicy=OnFailure", "spec.replicaSpecs.trainer.restartLimit=1"},
		},
	},
	{
		"Job", `apiVersion: batch/v1
kind: Job
metadata: {name: kinds}
spec:
  parallelism: 2
  completions: 2
  completionMode: Indexed
  backoffLimit: 0
  template: {spec: {restartPolicy: Never, containers: [{command: [sh, WORKER]}]}}
`, map[string][]string{
			"limit": {"spec.backoffLimit=1"}, "node loss": {"spec.backoffLimit=1"},
			"exit code": {
				"spec.backoffLimit=5",
				"spec.podFailurePolicy.rules=[{action: FailJob, onExitCodes: {operator: In, values: [7]}}]",
			},
			"deadline": {"spec.activeDeadlineSeconds=5"},
		},
	},
}
