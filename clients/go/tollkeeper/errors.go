package tollkeeper

import (
	"context"
	"fmt"
	"time"
	"unicode/utf8"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// ErrClosed is found by errors.Is in the failure of a call after Close.
var ErrClosed = status.Error(codes.Canceled, "the client is closed")

// errNotOurs is the failure of a call whose answer does not fit its question.
var errNotOurs = status.Error(codes.Unknown, "the answer has another number of items than the request")

// ArgumentError is a mistake of the caller. But for [Options.RequireLimit], it is found before anything is sent.
type ArgumentError struct {
	// Field is the path of what is wrong, such as "calls[1].hits".
	Field string
	// Problem has the bound and the value that was found, but no value of a descriptor.
	Problem string
}

func (e *ArgumentError) Error() string { return e.Field + ": " + e.Problem }

// below returns the error with the path of item i in front of its field.
func (e *ArgumentError) below(path string, i int) error {
	if path != "" {
		e.Field = fmt.Sprintf(path, i) + e.Field
	}
	return e
}

// Failure is why the service has not decided a call, or why a commit has failed. status.Code returns its code. errors.Is
// finds [ErrClosed], and context.Canceled or context.DeadlineExceeded if the context of the caller has ended.
type Failure struct {
	Code    codes.Code
	Message string
	cause   error
}

func (f *Failure) Error() string { return code.Code(f.Code).String() + ": " + f.Message }

// Unwrap returns the cause, if it is one of those that errors.Is finds.
func (f *Failure) Unwrap() error { return f.cause }

// GRPCStatus is for status.Code and status.Convert.
func (f *Failure) GRPCStatus() *status.Status { return status.New(f.Code, f.Message) }

func failure(err, cause error) *Failure {
	found := status.Convert(err)
	return &Failure{found.Code(), found.Message(), cause}
}

// failureOf returns why a call has failed. The end of the caller's context comes before what it has led to.
func (l *link) failureOf(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case endOf(ctx) != nil:
		return failure(status.FromContextError(endOf(ctx)).Err(), endOf(ctx))
	case l.errClosed() != nil:
		return failure(err, ErrClosed)
	}
	return failure(err, nil)
}

// endOf returns why a context has ended. Its own error may come a little after its deadline.
func endOf(ctx context.Context) error {
	if deadline, isBounded := ctx.Deadline(); isBounded && !time.Now().Before(deadline) && ctx.Err() == nil {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

func mistake(field, problem string, arguments ...any) *ArgumentError {
	return &ArgumentError{field, fmt.Sprintf(problem, arguments...)}
}

// checkKind is nil for a kind that can be sent, and a valid number of hits.
func checkKind(field, kind string, hits int64) *ArgumentError {
	field = fmt.Sprintf("%s[%q]", field, kind)
	if !utf8.ValidString(kind) {
		return mistake(field, "must be UTF-8")
	}
	return outOfRange(field, hits)
}

// outOfRange is nil for a valid number of hits.
func outOfRange(field string, hits int64) *ArgumentError {
	if hits >= 0 && hits <= HitsMax {
		return nil
	}
	return mistake(field, "must be from 0 to %d, and is %d", HitsMax, hits)
}
