// Decides a call for each line of stdin, such as user=alice or path=/login,user=alice:
//
//	echo user=alice | go run . localhost:8081 example [TIMEOUT_MS]
package main

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/tollkeeper/tollkeeper/clients/go/tollkeeper"
)

func main() {
	var options tollkeeper.Options
	if len(os.Args) > 3 {
		timeout, err := time.ParseDuration(os.Args[3] + "ms")
		if err != nil {
			log.Fatal(err)
		}
		options.Timeout = timeout
	}
	client, err := tollkeeper.New(os.Args[1], os.Args[2], options)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		decision, err := client.Decide(context.Background(), descriptor(lines.Text()))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(describe(decision))
	}
}

func descriptor(line string) (found tollkeeper.Descriptor) {
	for entry := range strings.SplitSeq(line, ",") {
		key, value, _ := strings.Cut(entry, "=")
		found = found.And(key, value)
	}
	return found
}

func describe(decision tollkeeper.Decision) string {
	verdict := map[bool]string{true: "allowed", false: "denied"}[decision.Allowed]
	if decision.Failed {
		return verdict + ", no answer"
	}
	if decision.Limit == nil {
		return verdict + ", no limit"
	}
	text := fmt.Sprintf("%s, %d of %d left, resets in %.0f s",
		verdict, decision.Remaining, decision.Limit.Hits, decision.Reset.Seconds())
	headers := decision.Headers()
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		text += fmt.Sprintf("; %s: %s", name, headers[name])
	}
	return text
}
