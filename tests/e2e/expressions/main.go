// expressions evaluates CEL as Kubernetes does: it reads one JSON request a line and writes one JSON answer a line.
//
// The first line declares variables: {"name": type}, where a type is a name ("int", "dyn") or an array of a name and its
// parameters (["map", "string", "int"]). Every further line is an expression with the values of its variables.
// Values are objects of one member, their kind: {"int": "42"}, {"list": [...]}, {"map": [[key, value], ...]}.
package main

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/version"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/apiserver/pkg/cel/library"
)

type request struct {
	Expression string                     `json:"expression"`
	Variables  map[string]json.RawMessage `json:"variables"`
}

type issue struct {
	Line    int    `json:"line"`
	Column  int    `json:"column"`
	Message string `json:"message"`
}

type answer struct {
	Stage  string  `json:"stage,omitempty"`
	Error  string  `json:"error,omitempty"`
	Issues []issue `json:"issues,omitempty"`
	Type   string  `json:"type,omitempty"`
	Value  any     `json:"value,omitempty"`
	Cost   *uint64 `json:"cost,omitempty"`
}

func main() {
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve() error {
	requests := json.NewDecoder(bufio.NewReader(os.Stdin))
	requests.UseNumber()
	output := bufio.NewWriter(os.Stdout)
	answers := json.NewEncoder(output)
	answers.SetEscapeHTML(false)
	var declared map[string]any
	if err := requests.Decode(&declared); err != nil {
		return err
	}
	env, err := newEnvironment(declared)
	if err != nil {
		return err
	}
	for requests.More() {
		var each request
		if err := requests.Decode(&each); err != nil {
			return err
		}
		found, err := recovered(env, each)
		if err != nil {
			return err
		}
		if err := answers.Encode(found); err != nil {
			return err
		}
	}
	return output.Flush()
}

func newEnvironment(declared map[string]any) (*cel.Env, error) {
	options := make([]cel.EnvOption, 0, len(declared))
	for name, each := range declared {
		options = append(options, cel.Variable(name, declaredType(each)))
	}
	release := version.MajorMinor(1, 36)
	set, err := environment.MustBaseEnvSet(release).Extend(environment.VersionedOptions{
		IntroducedVersion: release, EnvOptions: options,
	})
	if err != nil {
		return nil, err
	}
	return set.StoredExpressionsEnv(), nil
}

func declaredType(declared any) *cel.Type {
	switch each := declared.(type) {
	case []any:
		if each[0] == "list" {
			return cel.ListType(declaredType(each[1]))
		}
		return cel.MapType(declaredType(each[1]), declaredType(each[2]))
	case string:
		return map[string]*cel.Type{
			"bool": cel.BoolType, "int": cel.IntType, "uint": cel.UintType, "double": cel.DoubleType,
			"string": cel.StringType, "bytes": cel.BytesType, "dyn": cel.DynType, "duration": cel.DurationType,
			"timestamp": cel.TimestampType,
		}[each]
	}
	return nil
}

// recovered names the expressions that end cel-go itself, for example those with bytes as the key of a map.
func recovered(env *cel.Env, each request) (found answer, err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			found, err = answer{Stage: "panic", Error: fmt.Sprint(panicked)}, nil
		}
	}()
	return evaluate(env, each)
}

func evaluate(env *cel.Env, each request) (answer, error) {
	variables := map[string]any{}
	for name, raw := range each.Variables {
		value, err := native(raw)
		if err != nil {
			return answer{}, fmt.Errorf("%s: %w", name, err)
		}
		variables[name] = value
	}
	ast, issues := env.Compile(each.Expression)
	if issues.Err() != nil {
		refused := answer{Stage: "compile"}
		for _, found := range issues.Errors() {
			place := issue{found.Location.Line(), found.Location.Column() + 1, found.Message}
			refused.Issues = append(refused.Issues, place)
		}
		refused.Error = refused.Issues[0].Message
		return refused, nil
	}
	program, err := env.Program(ast, cel.InterruptCheckFrequency(celconfig.CheckFrequency))
	if err != nil {
		return answer{Stage: "program", Error: err.Error()}, nil
	}
	value, details, err := program.Eval(variables)
	outcome := answer{Type: ast.OutputType().String()}
	if details != nil {
		outcome.Cost = details.ActualCost()
	}
	if err != nil {
		outcome.Stage, outcome.Error = "evaluation", err.Error()
		return outcome, nil
	}
	outcome.Value = shown(value)
	return outcome, nil
}

// native returns a value as an API server passes it: maps with names as keys and lists are those of decoded JSON.
func native(raw json.RawMessage) (any, error) {
	var tagged map[string]json.RawMessage
	if err := json.Unmarshal(raw, &tagged); err != nil {
		return nil, err
	}
	for kind, held := range tagged {
		switch kind {
		case "null":
			return nil, nil
		case "bool":
			return string(held) == "true", nil
		case "list":
			return nativeList(held)
		case "map":
			return nativeMap(held)
		}
		var text string
		if err := json.Unmarshal(held, &text); err != nil {
			return nil, err
		}
		switch kind {
		case "string":
			return text, nil
		case "int":
			return strconv.ParseInt(text, 10, 64)
		case "uint":
			return strconv.ParseUint(text, 10, 64)
		case "double":
			return strconv.ParseFloat(text, 64)
		case "bytes":
			return base64.StdEncoding.DecodeString(text)
		case "duration":
			number, err := strconv.ParseInt(text, 10, 64)
			return time.Duration(number), err
		case "timestamp":
			return time.Parse(time.RFC3339Nano, text)
		}
		return nil, fmt.Errorf("unknown kind %s", kind)
	}
	return nil, fmt.Errorf("a value without kind: %s", raw)
}

func nativeList(held json.RawMessage) (any, error) {
	var elements []json.RawMessage
	if err := json.Unmarshal(held, &elements); err != nil {
		return nil, err
	}
	list := make([]any, 0, len(elements))
	for _, each := range elements {
		element, err := native(each)
		if err != nil {
			return nil, err
		}
		list = append(list, element)
	}
	return list, nil
}

func nativeMap(held json.RawMessage) (any, error) {
	var entries [][2]json.RawMessage
	if err := json.Unmarshal(held, &entries); err != nil {
		return nil, err
	}
	named, keyed := map[string]any{}, map[ref.Val]ref.Val{}
	for _, each := range entries {
		key, err := native(each[0])
		if err != nil {
			return nil, err
		}
		value, err := native(each[1])
		if err != nil {
			return nil, err
		}
		if name, ok := key.(string); ok {
			named[name] = value
		}
		keyed[types.DefaultTypeAdapter.NativeToValue(key)] = types.DefaultTypeAdapter.NativeToValue(value)
	}
	if len(named) == len(entries) {
		return named, nil
	}
	return keyed, nil
}

func shown(value ref.Val) any {
	switch each := value.(type) {
	case types.Null:
		return map[string]any{"null": nil}
	case types.Bool:
		return map[string]any{"bool": bool(each)}
	case types.Int:
		return map[string]any{"int": strconv.FormatInt(int64(each), 10)}
	case types.Uint:
		return map[string]any{"uint": strconv.FormatUint(uint64(each), 10)}
	case types.Double:
		return map[string]any{"double": strconv.FormatFloat(float64(each), 'g', -1, 64)}
	case types.String:
		return map[string]any{"string": string(each)}
	case types.Bytes:
		return map[string]any{"bytes": base64.StdEncoding.EncodeToString(each)}
	case types.Timestamp:
		return map[string]any{"timestamp": fmt.Sprintf("%d.%09d", each.Unix(), each.Nanosecond())}
	case types.Duration:
		return map[string]any{"duration": strconv.FormatInt(int64(each.Duration), 10)}
	case *types.Type:
		return map[string]any{"type": each.TypeName()}
	case *types.Optional:
		if !each.HasValue() {
			return map[string]any{"optional": nil}
		}
		return map[string]any{"optional": shown(each.GetValue())}
	case traits.Mapper:
		entries := [][2]any{}
		for keys := each.Iterator(); keys.HasNext() == types.True; {
			key := keys.Next()
			entries = append(entries, [2]any{shown(key), shown(each.Get(key))})
		}
		return map[string]any{"map": entries}
	case traits.Lister:
		elements := []any{}
		for all := each.Iterator(); all.HasNext() == types.True; {
			elements = append(elements, shown(all.Next()))
		}
		return map[string]any{"list": elements}
	}
	name := value.Type().TypeName()
	kind := strings.ToLower(name[strings.LastIndex(name, ".")+1:])
	if quantity, ok := value.Value().(*resource.Quantity); ok {
		forgetful := quantity.DeepCopy()
		forgetful.Add(resource.Quantity{}) // the text that it was read from is no part of the value
		return map[string]any{kind: forgetful.String()}
	}
	for format, each := range library.ConstantFormats {
		if equal, ok := value.Equal(each).(types.Bool); ok && bool(equal) {
			return map[string]any{kind: format}
		}
	}
	return map[string]any{kind: fmt.Sprint(value.Value())}
}
