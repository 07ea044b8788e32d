package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// This file prints help: at most maxHelp columns wide, with flags in groups in a fixed order, and names for their
// values.

const (
	maxHelp    = 100 // columns
	minGrouped = 16  // a command with fewer flags has one group
)

// flagGroups lists the groups of large commands' flags, with titles, in the same order for every command.
var flagGroups = []struct {
	title string
	names string
}{
	{"Code", "code code-file lang exec env node-arg check replay owner"},
	{"Machine", "image kernel kernel-retry memory cpus max-processes timeout life idle name arch accel cold " +
		"fresh-process keep-on-crash with-secrets session gdb no-jail"},
	{"Network", "allow-net allow-net-any ask allow-tcp allow-http max-connections max-upload max-download ca pcap"},
	{"Files and packages", "file dir dir-max project mode with out out-replace max-artifacts"},
	{"Policy and secrets", "policy secret tools require-jail require-hardware"},
	{"Input and output", "json raw tty interactive output-bytes"},
	{"Fleet", "fleet tenant priority worker-keys nats-creds nats-ca nats-cert nats-key nats-plain"},
}

// flagTypes names the values of flags that hold a text. Other flags have the name of their type.
var flagTypes = map[string]string{
	"accel": "ACCELERATOR", "allow-host": "HOST", "allow-http": "RULE", "allow-net": "HOST", "allow-origin": "ORIGIN",
	"allow-tcp": "HOST:PORT", "arch": "ARCH", "as": "FORM", "ask": "HOST", "attach": "ID", "audience": "TEXT",
	"backend": "NAME", "environment": "ID",
	"ca": "FILE", "code": "CODE", "code-file": "FILE", "deny-net": "HOST", "dir": "PATH", "env": "NAME=VALUE",
	"file": "PATH", "files": "DIGEST", "fleet": "URL", "folders": "TEXT", "format": "FORMAT", "from": "PATH",
	"head": "FILE",
	"home": "FOLDER", "host": "HOST", "http": "HOST:PORT", "image": "IMAGE", "into": "FOLDER", "issuer": "TEXT",
	"jwks":   "URL",
	"kernel": "KERNEL", "key": "TEXT", "kind": "KIND", "lang": "LANGUAGE", "metrics-token": "FILE",
	"mode": "MODE", "name": "NAME", "display-name": "TEXT", "prefix": "FOLDER",
	"nanos": "VERSION", "nats": "URL", "nats-ca": "FILE", "nats-cert": "FILE", "nats-creds": "FILE", "nats-key": "FILE",
	"node-arg": "ARG", "older-than": "AGE", "out": "FOLDER", "output": "FILE", "owner": "NAME", "pcap": "FILE",
	"plugin": "FOLDER", "command": "CODE", "end": "NAME", "in": "FOLDER",
	"policy": "FILE", "pool": "MIN:MAX", "priority": "PRIORITY", "project": "FOLDER", "routes": "URL",
	"run-id": "ID", "server-name": "NAME", "session-key": "FILE", "slots": "N",
	"worker-key": "FILE", "metrics": "HOST:PORT", "cluster-key": "FILE", "cluster-listen": "HOST:PORT",
	"cluster-name": "NAME", "domain": "DOMAIN", "listen": "HOST:PORT", "prompts": "FOLDER", "skills": "FOLDER",
	"qemu-log": "ITEM", "record": "FILE", "release": "PLACE",
	"remove": "HOST:PORT", "replay": "ID", "require-jail": "LAYER", "run": "ID",
	"secret": "NAME", "session": "SESSION", "signature": "FILE", "signers": "FILE",
	"since": "TIME", "size": "MIN:MAX", "status": "STATUS", "tenant": "NAME",
	"timeout": "DURATION", "tls-cert": "FILE", "tls-key": "FILE", "to": "FILE", "token-file": "FILE", "tools": "NAME",
	"trace": "PATTERN",
	"url":   "URL", "with": "PACKAGE", "worker-keys": "FILE",
}

// kindTypes names the values of other flags.
var kindTypes = map[string]string{"bool": "", "size": "SIZE", "duration": "DURATION", "int": "N", "int64": "N",
	"float64": "N"}

// valueName returns the placeholder of a flag's value in help.
func valueName(flag *pflag.Flag) string {
	if name, ok := kindTypes[flag.Value.Type()]; ok {
		return name
	}
	if name, ok := flagTypes[flag.Name]; ok {
		return name
	}
	return "TEXT"
}

// help prints a command's help.
func (a *app) help(cmd *cobra.Command) {
	to, columns := cmd.OutOrStdout(), helpColumns(cmd.OutOrStdout())
	if text := strings.TrimSpace(cmd.Long); !beginsLike(text, cmd.Short) {
		writeWrapped(to, cmd.Short+".", columns, 0)
		if text != "" {
			fmt.Fprintln(to)
			writeText(to, text, columns)
		}
	} else {
		writeText(to, text, columns)
	}
	fmt.Fprintln(to)
	_ = writeUsage(cmd, to, columns)
}

// beginsLike reports whether a text begins with the verb of a short description, as an instruction. In "Run boots a
// machine" it is not one, because a second verb follows.
func beginsLike(text, short string) bool {
	words, verb := strings.Fields(text), strings.Fields(short)
	return len(words) > 1 && words[0] == verb[0] && !strings.HasSuffix(words[1], "s")
}

func helpColumns(to io.Writer) int {
	if n := columnsOf(to); n > 0 {
		return min(n, maxHelp)
	}
	return maxHelp
}

// writeText prints paragraphs, each wrapped. Each indented line stays separate.
func writeText(to io.Writer, text string, columns int) {
	paragraph := ""
	flush := func() {
		if paragraph != "" {
			writeWrapped(to, paragraph, columns, 0)
		}
		paragraph = ""
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		indent := len(line) - len(strings.TrimLeft(line, " "))
		switch {
		case line == "":
			flush()
			fmt.Fprintln(to)
		case indent > 0:
			flush()
			fmt.Fprint(to, line[:indent])
			writeWrapped(to, line[indent:], columns, indent)
		default:
			paragraph = strings.TrimLeft(paragraph+" "+line, " ")
		}
	}
	flush()
}

func writeUsage(cmd *cobra.Command, to io.Writer, columns int) error {
	fmt.Fprintln(to, "Usage:")
	if cmd.Runnable() && !isGroup(cmd) {
		writeNamed(to, " ", cmd.UseLine(), 2, columns)
	}
	if cmd.HasAvailableSubCommands() {
		writeNamed(to, " ", cmd.CommandPath()+" [command]", 2, columns)
	}
	if cmd.Example != "" {
		fmt.Fprintf(to, "\nExamples:\n%s\n", cmd.Example)
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintln(to, "\nAvailable Commands:")
		for _, sub := range cmd.Commands() {
			if sub.IsAvailableCommand() {
				writeNamed(to, "  "+sub.Name(), sub.Short, cmd.NamePadding()+4, columns)
			}
		}
	}
	writeFlags(to, cmd.LocalFlags(), columns)
	if cmd.HasAvailableInheritedFlags() {
		writeGroup(to, "Global Flags", listFlags(cmd.InheritedFlags()), columns)
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintln(to)
		writeWrapped(to, fmt.Sprintf("Use \"%s [command] --help\" for more about a command.", cmd.CommandPath()), columns, 0)
	}
	return nil
}

// listFlags returns the flags in the order of flagGroups; others follow as they were defined.
func listFlags(flags *pflag.FlagSet) (list []*pflag.Flag) {
	flags.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && f.Name != "help" {
			list = append(list, f)
		}
	})
	slices.SortStableFunc(list, func(a, b *pflag.Flag) int { return flagRank(a.Name) - flagRank(b.Name) })
	if f := flags.Lookup("help"); f != nil {
		list = append(list, f)
	}
	return list
}

// flagRank returns a flag's position in flagGroups: each group has a hundred.
func flagRank(name string) int {
	for i, group := range flagGroups {
		if at := slices.Index(strings.Fields(group.names), name); at >= 0 {
			return 100*i + at
		}
	}
	return 100 * len(flagGroups)
}

func writeFlags(to io.Writer, flags *pflag.FlagSet, columns int) {
	list := listFlags(flags)
	if len(list) < minGrouped {
		writeGroup(to, "Flags", list, columns)
		return
	}
	for i, group := range flagGroups {
		var members []*pflag.Flag
		for _, f := range list {
			if flagRank(f.Name)/100 == i {
				members = append(members, f)
			}
		}
		writeGroup(to, group.title, members, columns)
	}
	rest := slices.DeleteFunc(list, func(f *pflag.Flag) bool { return flagRank(f.Name)/100 < len(flagGroups) })
	writeGroup(to, "Other Flags", rest, columns)
}

func writeGroup(to io.Writer, title string, flags []*pflag.Flag, columns int) {
	if len(flags) == 0 {
		return
	}
	fmt.Fprintf(to, "\n%s:\n", title)
	indent := 0
	for _, f := range flags {
		indent = max(indent, min(textWidth(flagName(f))+gap, 32))
	}
	for _, f := range flags {
		text := f.Usage
		if usual := f.DefValue; usual != "" && usual != "[]" && usual != "0" && usual != "0s" && usual != "false" &&
			!strings.Contains(text, "(default") {
			text += " (default " + usual + ")"
		}
		writeNamed(to, flagName(f), text, indent, columns)
	}
}

// flagName returns a flag with its short form and its value's name.
func flagName(f *pflag.Flag) string {
	name := "      --" + f.Name
	if f.Shorthand != "" {
		name = "  -" + f.Shorthand + ", --" + f.Name
	}
	value := valueName(f)
	switch {
	case value == "":
		return name
	case f.NoOptDefVal != "":
		return name + "[=" + value + "]"
	}
	return name + " " + value
}
