package cli

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// Each flag that gives a machine a network, packages or tools is refused beside a skill, whose metadata decides. A new
// flag of the network that only limits stands here.
func TestSkillFlags(t *testing.T) {
	limits := []string{"max-connections", "max-upload", "max-download", "ca", "pcap"}
	var f runFlags
	cmd := &cobra.Command{}
	f.machineFlags(cmd, new(time.Duration))
	for _, group := range flagGroups {
		if group.title != "Network" {
			continue
		}
		for _, name := range append(strings.Fields(group.names), "with", "tools") {
			if cmd.Flags().Lookup(name) != nil && !slices.Contains(limits, name) && !slices.Contains(skillDecides, name) {
				t.Errorf("--%s goes with a skill", name)
			}
		}
		return
	}
	t.Error("there is no group of the network's flags")
}
