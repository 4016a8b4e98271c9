package platform_test

import (
	"testing"
	"testing/fstest"

	"muster/internal/platform"
)

func TestCloud(t *testing.T) {
	for name, try := range map[string]struct {
		dmi  map[string]string
		want string
	}{
		"nitro": {map[string]string{"sys_vendor": "Amazon EC2\n", "product_name": "p4d.24xlarge\n"}, "aws"},
		"xen at amazon": {
			map[string]string{"sys_vendor": "Xen\n", "bios_version": "4.11.amazon\n", "product_name": "HVM domU\n"},
			"aws",
		},
		"xen":          {map[string]string{"sys_vendor": "Xen\n", "bios_version": "4.17\n"}, ""},
		"google":       {map[string]string{"sys_vendor": "Google\n", "product_name": "Google Compute Engine\n"}, "gcp"},
		"a Chromebook": {map[string]string{"sys_vendor": "Google\n", "product_name": "Eve\n"}, ""},
		"azure": {map[string]string{
			"sys_vendor":        "Microsoft Corporation\n",
			"chassis_asset_tag": "7783-7084-3265-9085-8269-3286-77\n",
		}, "azure"},
		"hyper-v":          {map[string]string{"sys_vendor": "Microsoft Corporation\n", "product_name": "Virtual Machine\n"}, ""},
		"no firmware":      {nil, ""},
		"a server":         {map[string]string{"sys_vendor": "Supermicro\n", "product_name": "SYS-821GE\n"}, ""},
		"not quite Amazon": {map[string]string{"sys_vendor": "Amazon\n"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			files := fstest.MapFS{}
			for file, text := range try.dmi {
				files["sys/class/dmi/id/"+file] = &fstest.MapFile{Data: []byte(text)}
			}
			if got := platform.Cloud(files); got != try.want {
				t.Errorf("%q, want %q", got, try.want)
			}
		})
	}
	if got := platform.Cloud(nil); got != "" {
		t.Errorf("without files: %q", got)
	}
}
