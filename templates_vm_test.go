package unitask_test

import (
	"testing"

	"github.com/unitask/unitask"
)

// The images that users of the E2B API expect have what they use, and a home of the code's user.
func TestTemplateImages(t *testing.T) {
	needApt(t)
	if !long() {
		t.Skip("the images take minutes: make long (UNITASK_TEST_LONG=1)")
	}
	rt := sessionRuntime(t)
	for _, name := range []string{"base", "code-interpreter-v1"} {
		t.Run(name, func(t *testing.T) {
			// Not by openSession: the image is built first.
			req := unitask.SessionRequest{Request: unitask.Request{Image: name}, Root: true}
			s, err := rt.NewSession(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			for line, want := range map[string]string{
				"whoami; echo $HOME; stat -c '%U %A' ~":                       "user\n/home/user\nuser drwxr-xr-x\n",
				"cd; git init -q r; cd r; curl -V >f; git status -s":          "?? f\n",
				"python3 -c 'print(6*7)'; python -c 'print(1)'":               "42\n1\n",
				"pip -V >x; python3 -m venv --without-pip v && echo v":        "v\n",
				"node -e 'console.log(6*7)'; npm --version | wc -l":           "42\n1\n",
				"sudo id -u; sudo -u user whoami; sudo npm --version | wc -l": "0\nuser\n1\n",
				"ps -o comm= -p $$; free -m | wc -l":                          "bash\n3\n",
			} {
				res, err := s.Exec(t.Context(), unitask.Command{Args: []string{"bash", "-c", line}})
				if err != nil || string(res.Stdout) != want {
					t.Errorf("%s: %q %q %v", line, res.Stdout, res.Stderr, err)
				}
			}
		})
	}
}
