package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
)

// settings are Schemathesis's, with the session that most requests name, and the run of an ended command in it.
// Requests that end or copy a session name none that is there. Operations that take a machine get few requests.
// Machines do not serve ports here, so that 502 is right.
const settings = `hooks = "hooks"

[checks.negative_data_rejection]
expected-statuses = ["400", "404", "405", "409", "413", "415", "422", "426", "429"]

[[operations]]
include-path-regex = '/ports/'

[operations.checks]
not_a_server_error = { expected-statuses = ["2xx", "4xx", "502"] }
negative_data_rejection = { expected-statuses = ["400", "404", "405", "422", "502"] }

[[operations]]
include-path-regex = '^/v1/sessions/\{id\}(/(steps|commands|runs|terminal|files|tar|values|ports|pause|resume)(/|$))'
parameters = { "path.id" = %[1]q, "path.run" = %[2]q }

[[operations]]
include-operation-id = ["extendSession", "forkSession", "endSession"]
parameters = { "path.id" = "none" }

[[operations]]
include-operation-id = ["getSession"]
parameters = { "path.id" = %[1]q }

[[operations]]
include-operation-id = ["createSession", "pauseSession", "resumeSession"]
generation = { max-examples = %[3]d }
`

// hooks tells Schemathesis how to send a tar, which mostly is none.
const hooks = `import schemathesis

@schemathesis.serializer("application/x-tar")
def tar(context, value):
    return value if isinstance(value, bytes) else str(value).encode(errors="replace")
`

// fewExamples bounds the requests for an operation that takes some hundred milliseconds of a machine.
const fewExamples = 5

// prepare starts a session, and writes Schemathesis's settings into a folder.
func prepare(dir, address string, examples int) error {
	var session struct {
		ID string `json:"id"`
	}
	if err := post(address+"/v1/sessions", `{"language": "shell", "timeoutSeconds": 5}`, &session); err != nil {
		return fmt.Errorf("start a session: %w", err)
	}
	var command struct {
		RunID string `json:"runId"`
	}
	err := post(address+"/v1/sessions/"+session.ID+"/commands?wait=false", `{"args": ["echo", "hello"]}`, &command)
	if err != nil {
		return fmt.Errorf("start a command: %w", err)
	}
	text := fmt.Sprintf(settings, session.ID, command.RunID, min(examples, fewExamples))
	return errors.Join(os.WriteFile(filepath.Join(dir, "schemathesis.toml"), []byte(text), 0o600),
		os.WriteFile(filepath.Join(dir, "hooks.py"), []byte(hooks), 0o600))
}

// maxAnswer bounds an answer, in bytes.
const maxAnswer = 1 << 20

// post sends JSON, and reads an answer in JSON.
func post(url, body string, into any) error {
	res, err := http.Post(url, "application/json", bytes.NewReader([]byte(body)))
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return err
	}
	if res.StatusCode/100 != 2 {
		return fmt.Errorf("%s: %s", res.Status, text)
	}
	return json.Unmarshal(text, into)
}
