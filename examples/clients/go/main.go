// Makes a call for each line of stdin, such as user=alice or path=/login,user=alice:
//
//	echo user=alice | go run . localhost:8081 example [DEADLINE_MS]
package main

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
)

func main() {
	deadline := 50
	if len(os.Args) > 3 {
		deadline, _ = strconv.Atoi(os.Args[3])
	}
	limiter, err := NewLimiter(os.Args[1], time.Duration(deadline)*time.Millisecond)
	if err != nil {
		log.Fatal(err)
	}
	defer limiter.Close()
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		fmt.Println(describe(limiter.Allow(context.Background(), os.Args[2], entries(lines.Text())...)))
	}
}

func entries(line string) (found []Entry) {
	for _, entry := range strings.Split(line, ",") {
		key, value, _ := strings.Cut(entry, "=")
		found = append(found, Entry{key, value})
	}
	return found
}

func describe(decision Decision) string {
	verdict := map[bool]string{true: "allowed", false: "denied"}[decision.Allowed]
	if decision.Failure != codes.OK {
		return fmt.Sprintf("%s, no answer", verdict)
	}
	if decision.Limit == 0 {
		return verdict + ", no limit"
	}
	text := fmt.Sprintf("%s, %d of %d left, resets in %.0f s",
		verdict, decision.Remaining, decision.Limit, decision.Reset.Seconds())
	for name, value := range decision.Headers {
		text += fmt.Sprintf("; %s: %s", name, value)
	}
	return text
}
