{{/* Values of a form. A pattern in the schema would be all that Helm shows of it. */}}
{{- define "tollkeeper.formProblems" -}}
{{- include "tollkeeper.urlProblems" . }}
{{- if not (regexMatch "^[a-z]([a-z0-9-]*[a-z0-9])?$" (include "tollkeeper.fullname" .)) }}
- {{ include "tollkeeper.fullname" . | quote }} cannot be the name of a Service: set fullnameOverride to lower-case letters, digits and -, beginning with a letter
{{- end }}
{{- include "tollkeeper.form" (list . "^([a-z]([a-z0-9-]*[a-z0-9])?)?$" "lower-case letters, digits and -, beginning with a letter" "nameOverride") }}
{{- include "tollkeeper.form" (list . "^(sha256:[0-9a-f]{64})?$" "sha256: and 64 hexadecimal digits" "image.digest") }}
{{- $name := list . "^([a-z0-9]([a-z0-9.-]*[a-z0-9])?)?$" "the name of an object: lower-case letters, digits, - and ." }}
{{- include "tollkeeper.form" (list . "^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$" "a domain such as cluster.local" "clusterDomain") }}
{{- include "tollkeeper.form" (concat $name (list "existingRulesConfigMap" "serviceAccount.name" "priorityClassName" "runtimeClassName" "namespaceOverride" "monitoring.scrape.namespace" "monitoring.alerts.namespace" "monitoring.dashboard.namespace" "test.clientSecret")) }}
{{- include "tollkeeper.form" (list . "^([1-9][0-9]*|[1-9][0-9]?%|100%)$" "at least 1 or 1%, since no node could be drained with 0" "podDisruptionBudget.maxUnavailable") }}
{{- include "tollkeeper.form" (list . "^([1-9][0-9]*|[1-9][0-9]?%)?$" "at least 1 or 1%, and less than 100%" "podDisruptionBudget.minAvailable") }}
{{- include "tollkeeper.form" (list . "^0*([1-9][0-9]{0,3}ms|[1-5][0-9]{4}ms|60000ms|[1-9]s|[1-5][0-9]s|60s|1m)$" "a duration from 1ms to 1m, such as 15ms" "decisionBudget") }}
{{- include "tollkeeper.form" (list . "^[1-9][0-9]*(ms|s|m)$" "a duration such as 30s" "monitoring.scrape.interval") }}
{{- include "tollkeeper.form" (list . "^([0-9]+[hms])*$" "a duration such as 2160h" "tls.certificate.duration" "tls.certificate.renewBefore") }}
{{- include "tollkeeper.form" (list . "^([0-9]+(ms|s|m|h)|off)?$" "a duration such as 30m, or off" "settings.connection-age") }}
{{- include "tollkeeper.form" (list . "^([0-9]+([KM]iB)?)?$" "a size such as 256MiB" "settings.max-arriving-bytes") }}
{{- include "tollkeeper.form" (list . "^[A-Za-z0-9!#$%&'*+.^_`|~-]*$" "the name of a header" "settings.header-limit" "settings.header-remaining" "settings.header-reset") }}
{{- include "tollkeeper.form" (list . "^[!-z|~]*$" "visible ASCII characters without braces" "settings.key-prefix") }}
{{- include "tollkeeper.form" (list . "^[A-Za-z0-9.:_-]*$" "a DNS name or an IP address" "store.tls.name" "controlPlane.tls.name") }}
{{- include "tollkeeper.form" (list . "^(error|warn|info|debug|off)(,[A-Za-z0-9_:]+=(error|warn|info|debug|off)){0,32}$" "error, warn, info, debug or off, and at most 32 of ,TARGET=LEVEL" "log.level") }}
{{- include "tollkeeper.form" (list . `^[^\s"]+$` "a URL or a path, without spaces and quotes" "monitoring.alerts.runbook") }}
{{- include "tollkeeper.form" (list . "=" "a descriptor such as user=alice" "test.descriptor") }}
{{- $size := .Values.maxMessageBytes -}}
{{- $unit := hasSuffix "KiB" $size | ternary 1024 (hasSuffix "MiB" $size | ternary 1048576 1) -}}
{{- $bytes := mul $unit (regexFind "^[0-9]+" $size | int64) -}}
{{- if or (not (regexMatch "^[0-9]{1,8}([KM]iB)?$" $size)) (lt $bytes 1024) (gt $bytes 67108864) }}
- maxMessageBytes is {{ quote $size }}, and must be a size from 1KiB to 64MiB, such as 4MiB
{{- end }}
{{- range .Values.extraArgs }}
{{- if not (hasPrefix "--" .) }}
- extraArgs contains {{ quote . }}: each must be --flag or --flag=value
{{- end }}
{{- end }}
{{- end -}}

{{/* The problems of values of a form: the root, the form as a pattern and in words, and the paths of the values. */}}
{{- define "tollkeeper.form" -}}
{{- $root := first . -}}
{{- $form := index . 1 -}}
{{- $words := index . 2 -}}
{{- range $path := slice . 3 }}
{{- $value := include "tollkeeper.valueAt" (list $root $path) }}
{{- if not (regexMatch $form $value) }}
- {{ $path }} is {{ quote $value }}, and must be {{ $words }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The value at a path, as text: the root, and the path. Empty if there is none. */}}
{{- define "tollkeeper.valueAt" -}}
{{- $value := (first .).Values -}}
{{- range last . | splitList "." -}}
{{- $value = get ($value | default dict) . -}}
{{- end -}}
{{- $value -}}
{{- end -}}

{{/* The URLs. Their problems do not repeat them, since a password may be in a bad one. */}}
{{- define "tollkeeper.urlProblems" -}}
{{- $port := ":([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])" -}}
{{- $host := `(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)` -}}
{{- $server := printf "%s(%s)?" $host $port -}}
{{- $servers := printf "%s(,%s)*" $server $server -}}
{{- $stores := list
  "memory://"
  (printf "(redis|valkey)s?://(.*@)?%s(/[0-9]*)?" $server)
  (printf "(redis|valkey)s?[+]sentinel://(.*@)?%s/[A-Za-z0-9._-]+(/[0-9]*)?" $servers)
  (printf "(redis|valkey)s?[+]cluster://(.*@)?%s(/0?)?" $servers)
  "(redis|valkey)[+]unix://(.*@)?/[^?#]+([?]db=[0-9]*)?"
-}}
{{- if not (regexMatch (printf "^(%s)$" (join "|" $stores)) .Values.store.url) }}
- store.url must be memory://, redis://host:port[/db], redis+sentinel://host:port,host:port/name[/db], redis+cluster://host:port,host:port or redis+unix:///path, and with TLS begin with rediss instead of redis
{{- end }}
{{- if not (regexMatch (printf "^(xds([+]tls)?://%s%s[?]node=[^&#]+)?$" $host $port) .Values.controlPlane.url) }}
- controlPlane.url must be xds://host:port?node=ID, or with TLS xds+tls://host:port?node=ID
{{- end }}
{{- end -}}

{{/* The problems of the Secrets. */}}
{{- define "tollkeeper.secretProblems" -}}
{{- range include "tollkeeper.secretFiles" . | fromYamlArray }}
{{- $secret := include "tollkeeper.valueAt" (list $ .secret) }}
{{- $key := include "tollkeeper.valueAt" (list $ .key) }}
{{- if $secret }}
{{- include "tollkeeper.form" (list $ "^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$" "the name of a Secret: lower-case letters, digits, - and ." .secret) }}
{{- include "tollkeeper.form" (list $ "^[A-Za-z0-9._-]+$" "a key of a Secret: letters, digits, -, _ and ." .key) }}
{{- else if and $key (ne $key .default) }}
- {{ .key }} is {{ quote $key }}, but {{ .secret }} is empty: name the Secret
{{- end }}
{{- end }}
{{- end -}}
