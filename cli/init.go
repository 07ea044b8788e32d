package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/policy"
)

func (a *app) initCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "init",
		Short: "Write a " + policy.CeilingFile + " for this folder, by three questions",
		Long: `Init asks which hosts runs in this folder may reach, how much memory they have, and
whether you trust that. It writes the most that a run gets to .unitask.toml. If you trust it,
that is also what a run gets that does not say otherwise, and models may have it (unitask
mcp). An empty answer, or the end of the input, takes what stands in brackets.`,
		Example: `  unitask init
  printf 'api.github.com\n1G\nn\n' | unitask init`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.init(cmd.Context()) },
	}
}

func (a *app) init(ctx context.Context) error {
	if _, err := os.Lstat(policy.CeilingFile); !errors.Is(err, fs.ErrNotExist) {
		if err != nil {
			return err
		}
		return usage(fmt.Errorf("%s is there already", policy.CeilingFile))
	}
	in := bufio.NewScanner(a.std.Stdin)
	var hosts []string
	for _, host := range strings.FieldsFunc(a.ask(ctx, in, "Hosts that runs may reach, with commas between", "none"),
		func(r rune) bool { return r == ',' || r == ' ' }) {
		if !strings.EqualFold(host, "none") {
			rule, err := policy.ParseNetRule(host)
			if err != nil {
				return usage(fmt.Errorf("host %.100q %w", host[strings.LastIndexByte(host, '@')+1:], err))
			}
			hosts = append(hosts, rule.String())
		}
	}
	if ctx.Err() != nil {
		return a.stopped()
	}
	memory := size{unit: 1 << 20}
	text := a.ask(ctx, in, "Memory of a run", fmt.Sprintf("%dM", policy.DefaultMemoryMB))
	if err := memory.Set(text); err != nil {
		return usage(fmt.Errorf("memory %.40q %w", text, err))
	}
	trusted := isYes(a.ask(ctx, in, "Trust it? Runs then have that by default, and models (unitask mcp) may", "no"))
	if ctx.Err() != nil { // a read may still be waiting
		return a.stopped()
	}
	if err := in.Err(); err != nil {
		return err
	}
	return a.writeCeiling(ceilingText(hosts, memory, trusted), trusted)
}

func isYes(answer string) bool {
	return strings.EqualFold(answer, "y") || strings.EqualFold(answer, "yes")
}

// ask returns the answer to a question. At the end of the input, for an empty line, and after Ctrl-C, it returns the
// default.
func (a *app) ask(ctx context.Context, in *bufio.Scanner, question, usual string) string {
	fmt.Fprintf(a.std.Stderr, "%s [%s]: ", question, usual)
	if ctx.Err() != nil {
		return usual
	}
	line := make(chan string, 1)
	go func() { // Ctrl-C does not end a read
		if !in.Scan() {
			line <- ""
			return
		}
		line <- in.Text()
	}()
	answer := ""
	select {
	case text := <-line:
		answer = strings.TrimSpace(text)
	case <-ctx.Done():
		return usual
	}
	if !isTerminal(a.std.Stdin) { // the terminal has not shown a line end
		fmt.Fprintln(a.std.Stderr, safe(answer))
	}
	if answer == "" {
		return usual
	}
	return answer
}

// ceilingText returns a file that allows these hosts and this memory.
func ceilingText(hosts []string, memory size, trusted bool) string {
	var list []string
	for _, h := range hosts {
		list = append(list, strconv.Quote(h))
	}
	allowed := strings.Join(list, ", ")
	text := fmt.Sprintf(`# The most that unitask gives to a run in this folder or below. docs/policy.md has all keys.
allowNet = [%s]
allowNetAny = false
allowTcp = []
memoryMb = %d
filesUnder = ["."]
dirsUnder = ["."]
`, allowed, memory.n)
	if !trusted { // [defaults] would not apply
		return text
	}
	return text + fmt.Sprintf(`
# What a run gets that does not say otherwise, by the flags of unitask run.
[defaults]
memory = %q
allow-net = [%s]
`, memory.text, allowed)
}

// writeCeiling writes the file if it is a valid ceiling. If the user has agreed, it trusts exactly the text that it
// wrote, not a later version of the file.
func (a *app) writeCeiling(text string, trusted bool) error {
	name, err := filepath.Abs(policy.CeilingFile)
	if err != nil {
		return err
	}
	ceiling, err := policy.ParseCeiling(name, []byte(text))
	if err != nil {
		return usage(err)
	}
	home, err := a.homeFolder()
	if err != nil {
		return err
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(name)) // half a ceiling may allow more
	}
	a.ui.note("wrote %s", policy.CeilingFile)
	if !trusted {
		return nil
	}
	if err := policy.OpenTrust(home).Add(ceiling, time.Now()); err != nil {
		return err
	}
	a.auditTrust(audit.CeilingTrusted, home, name, nil)
	a.ui.note("it is trusted as it is now; unitask policy trust --forget takes that back")
	return nil
}
