{{/* Values that the chart does not have, each with the one that is probably meant. The schema would only say that they
"are not allowed". */}}
{{- define "tollkeeper.nameProblems" -}}
{{- $moved := .Files.Get "files/moved.yaml" | fromYaml -}}
{{- $known := .Files.Lines "files/names.txt" | compact -}}
{{- range include "tollkeeper.unknown" (dict "values" .Values "at" "" "known" (printf "\n%s\n" (join "\n" $known))) | splitList "\n" | compact }}
{{- /* A parent chart may have a condition on `enabled`. */}}
{{- if not (and (eq . "enabled") (contains "/charts/" $.Template.BasePath)) }}
{{- $near := include "tollkeeper.nearest" (list . (concat (keys $moved) $known)) }}
{{- if hasKey $moved . }}
- {{ . }} is not a value of this chart: use {{ get $moved . }}
{{- else if hasKey $moved $near }}
- {{ . }} is not a value of this chart: use {{ get $moved $near }}
{{- else }}
- {{ . }} is not a value of this chart{{ if $near }}: did you mean {{ $near }}?{{ else }}; `helm show values` lists them{{ end }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The paths of values that are not known, one a line: of `values`, which are at the path `at`. */}}
{{- define "tollkeeper.unknown" -}}
{{- $ := . -}}
{{- range $name, $value := .values }}
{{- $path := print $.at $name }}
{{- if not (contains (printf "\n%s\n" $path) $.known) }}
{{ $path }}
{{- else if and (kindIs "map" $value) (contains (printf "\n%s." $path) $.known) }}
{{- include "tollkeeper.unknown" (dict "values" $value "at" (print $path ".") "known" $.known) }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The path, of a list, that is most like a path, or nothing: by pairs of letters in the last name, best under the same parent. */}}
{{- define "tollkeeper.nearest" -}}
{{- $path := first . -}}
{{- $parent := regexReplaceAll "[^.]*$" $path "" -}}
{{- $pairs := include "tollkeeper.pairs" $path | splitList " " | compact -}}
{{- $best := dict "path" "" "score" 54 -}}
{{- range $other := last . | sortAlpha -}}
{{- $common := 0 -}}
{{- $others := include "tollkeeper.pairs" $other | splitList " " | compact -}}
{{- range $pairs -}}
{{- if has . $others -}}
{{- $common = add $common 1 -}}
{{- end -}}
{{- end -}}
{{- $score := div (mul 200 $common) (add 1 (len $pairs) (len $others)) -}}
{{- if eq $parent (regexReplaceAll "[^.]*$" $other "") -}}
{{- $score = add $score 20 -}}
{{- end -}}
{{- if and $common (gt (int $score) (int $best.score)) -}}
{{- $_ := set $best "path" $other -}}
{{- $_ := set $best "score" $score -}}
{{- end -}}
{{- end -}}
{{- $best.path -}}
{{- end -}}

{{/* The pairs of neighboring letters in the last name of a path. */}}
{{- define "tollkeeper.pairs" -}}
{{- $letters := splitList "." . | last | lower | replace "-" "" | replace "_" "" -}}
{{- range until (max 0 (sub (len $letters) 1) | int) -}}
{{ substr . (add . 2 | int) $letters }} {{ end -}}
{{- end -}}
