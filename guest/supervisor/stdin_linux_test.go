package supervisor

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/unitask/unitask/guest"
)

// A command whose standard input had an error has failed, whatever its exit code.
func TestInputThatBreaks(t *testing.T) {
	t.Parallel()
	c := open(t)
	broken := errors.New("the sender hung up")
	for _, row := range []struct {
		command string
		tty     *guest.Size
		out     string
		end     guest.End
		fails   error
	}{
		{"cat", nil, "half\n", guest.End{}, broken},
		{"cat; exit 3", nil, "half\n", guest.End{Code: 3}, nil},
		{"read x; stty -onlcr; echo got $x", &guest.Size{Columns: 80, Rows: 25}, "got half\n", guest.End{}, nil},
	} {
		var out bytes.Buffer
		cmd, err := c.Start(t.Context(), Exec{Args: []string{"sh", "-c", row.command}, Env: environment, Dir: "/",
			Terminal: row.tty, Stdout: &out, Stdin: io.MultiReader(strings.NewReader("half\n"), iotest.ErrReader(broken))})
		if err != nil {
			t.Fatal(err)
		}
		end, err := cmd.Wait(within(t))
		if end != row.end || !errors.Is(err, row.fails) || (err == nil) != (row.fails == nil) ||
			!strings.HasSuffix(out.String(), row.out) {
			t.Errorf("%s: %+v %v, %q", row.command, end, err, out.String())
		}
	}
}

// Consecutive commands read from one pipe.
func TestInputInTurn(t *testing.T) {
	t.Parallel()
	c := open(t)
	from, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	defer to.Close()
	for _, line := range []string{"one\n", "two\n", "three\n"} {
		if _, err := to.WriteString(line); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		cmd, err := c.Start(t.Context(), Exec{Args: []string{"head", "-n", "1"}, Env: environment, Dir: "/", Stdin: from,
			Stdout: &out})
		if err != nil {
			t.Fatal(err)
		}
		if end, err := cmd.Wait(within(t)); end != (guest.End{}) || err != nil || out.String() != line {
			t.Errorf("%+v %v, %q; want %q", end, err, out.String(), line)
		}
	}
}
