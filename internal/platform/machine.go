package platform

import (
	"io/fs"
	"strings"
)

// Cloud tells by its firmware whose virtual machine this is: aws, gcp, azure, or empty for any other. files is as in
// Input.
func Cloud(files fs.FS) string {
	l := lookup{Input{Files: files}}
	dmi := func(name string) string {
		text, _ := l.file("/sys/class/dmi/id/" + name)
		return strings.TrimSpace(string(text))
	}
	switch {
	case dmi("sys_vendor") == "Amazon EC2", dmi("sys_vendor") == "Xen" && strings.HasSuffix(dmi("bios_version"), ".amazon"):
		return "aws"
	case dmi("product_name") == "Google Compute Engine", dmi("product_name") == "Google":
		return "gcp"
	case dmi("chassis_asset_tag") == azureTag:
		return "azure"
	}
	return ""
}

// azureTag is the asset tag of all machines of Azure. Other machines on Hyper-V have the same vendor.
const azureTag = "7783-7084-3265-9085-8269-3286-77"
