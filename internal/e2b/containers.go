package e2b

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/unitask/unitask"
)

// settleScript gives the user of a container image the name and the home of a sandbox's user: clients and steps know
// both. /out belongs to the image's user. It adds no user if the image has one of that name.
const settleScript = `set -eu
set -- $(ls -ldn /out)
owner=$3 group=$4
mkdir -p /root
if ! [ -d /home/user ]; then
	mkdir -p /home/user
	chown -h "$owner:$group" /home/user
fi
for file in /etc/passwd /etc/group; do
	if ! [ -e $file ]; then :>$file; fi
	while IFS=: read -r name rest; do
		if [ "$file$name" = /etc/passwduser ]; then exit 0; fi
	done <$file
	# What is left is a last line without an end.
	if [ "$file$name" = /etc/passwduser ]; then exit 0; fi
	if [ "$name" ]; then echo >>$file; fi
done
echo "user:x:$owner:$group::/home/user:/bin/bash" >>/etc/passwd
echo "user:x:$group:" >>/etc/group
`

// settleTime bounds settleScript.
const settleTime = 30 * time.Second

// settle prepares a session of a container image for a sandbox.
func settle(ctx context.Context, s *unitask.Session) error {
	res, err := s.Exec(ctx, unitask.Command{Args: []string{"/bin/sh", "-c", settleScript}, Dir: "/", User: "root",
		Timeout: settleTime, ResultBytes: 200})
	if err != nil {
		return err
	}
	if res.ExitCode != 0 {
		return fmt.Errorf("the image %s makes no sandbox, which needs sh, ls, mkdir and chown: %w", s.Image,
			errors.New(cmp.Or(res.Error, string(res.Stderr))))
	}
	return nil
}
