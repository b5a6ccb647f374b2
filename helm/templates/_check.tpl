{{/* Ends the rendering with every problem of the values that their schema does not report, or not in words. */}}
{{- define "tollkeeper.check" -}}
{{- $problems := list -}}
{{- range list "nameProblems" "formProblems" "secretProblems" "sourceProblems" "storeProblems" "extraProblems" "objectProblems" "lookupProblems" -}}
{{- $problems = concat $problems (include (printf "tollkeeper.%s" .) $ | trim | splitList "\n") -}}
{{- end -}}
{{- with $problems | compact | uniq -}}
{{- fail (printf "these values cannot be used:\n%s" (join "\n" .)) -}}
{{- end -}}
{{- end -}}

{{/* Where the rules come from. */}}
{{- define "tollkeeper.sourceProblems" -}}
{{- $text := .Values.rules | default dict | values | join "" | trim -}}
{{- $sources := list -}}
{{- range $name, $value := dict "controlPlane.url" .Values.controlPlane.url "existingRulesConfigMap" .Values.existingRulesConfigMap "rules" $text -}}
{{- if $value -}}
{{- $sources = append $sources $name -}}
{{- end -}}
{{- end -}}
{{- if gt (len $sources) 1 }}
- {{ join " and " $sources }} are different sources of rules: keep one of them
{{- end }}
{{- if and (kindIs "map" .Values.rules) (not $sources) }}
- rules is empty, and the service does not start without rules: add a rule file
{{- end }}
{{- range $name, $text := .Values.rules }}
{{- if not (regexMatch `^[A-Za-z0-9_-][A-Za-z0-9._-]*\.ya?ml$` $name) }}
- rules contains {{ quote $name }}: the name of a rule file must end in .yaml or .yml, and not begin with a dot
{{- else if regexMatch `\.test\.ya?ml$` $name }}
- rules contains {{ quote $name }}: a name in .test.yaml or .test.yml is that of tests, which the service does not read
{{- end }}
{{- end }}
{{- $tls := .Values.controlPlane.tls -}}
{{- if and (or $tls.name ($tls.caSecret).name ($tls.certSecret).name) (not (hasPrefix "xds+tls://" .Values.controlPlane.url)) }}
- controlPlane.tls needs a controlPlane.url that begins with xds+tls://
{{- end }}
{{- end -}}

{{/* A ConfigMap that does not exist: the pods would wait for it. `helm template` cannot know. */}}
{{- define "tollkeeper.lookupProblems" -}}
{{- $namespace := include "tollkeeper.namespace" . -}}
{{- with .Values.existingRulesConfigMap -}}
{{- /* Kubernetes puts this ConfigMap into each namespace. Where it is not found, Helm has no cluster, or the namespace is new. */}}
{{- if and (lookup "v1" "ConfigMap" $namespace "kube-root-ca.crt") (not (lookup "v1" "ConfigMap" $namespace .)) }}
- existingRulesConfigMap is {{ quote . }}, and there is no such ConfigMap in the namespace {{ $namespace }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Where counters are kept, and how many replicas share them. */}}
{{- define "tollkeeper.storeProblems" -}}
{{- $replicas := include "tollkeeper.replicas" . | int -}}
{{- $store := .Values.store -}}
{{- if and (eq (include "tollkeeper.storeUrl" .) "memory://") (gt $replicas 1) }}
- there may be {{ $replicas }} replicas with store.url memory://: each replica would count on its own, which admits {{ $replicas }} times the limits. Set store.url to a Redis that they share, or allow only one replica
{{- end }}
{{- if and .Values.bundledRedis.enabled (ne $store.url "memory://") }}
- bundledRedis.enabled is true, and store.url names another store: remove one of them
{{- end }}
{{- if regexMatch "://.*:.*@" $store.url }}
- store.url contains a password, which anyone who may read the pod would see: put it into a Secret, and name the Secret in store.passwordSecret
{{- end }}
{{- if and ($store.passwordSecret).name (eq $store.url "memory://") }}
- store.passwordSecret needs a store.url that names a Redis with a password
{{- end }}
{{- if and (or $store.sentinel.user ($store.sentinel.passwordSecret).name) (not (contains "+sentinel://" $store.url)) }}
- store.sentinel needs a store.url that begins with redis+sentinel:// or rediss+sentinel://
{{- end }}
{{- if and (or $store.tls.name ($store.tls.caSecret).name ($store.tls.certSecret).name) (not (regexMatch "^(rediss|valkeys)[+:]" $store.url)) }}
- store.tls needs a store.url that begins with rediss
{{- end }}
{{- end -}}

{{/* Flags and variables that would replace those of other values, whose problems are found here, or have no effect. */}}
{{- define "tollkeeper.extraProblems" -}}
{{- $own := list -}}
{{- range include "tollkeeper.ownArgs" . | fromYamlArray -}}
{{- $own = append $own (splitList "=" . | first) -}}
{{- end -}}
{{- range .Values.extraArgs }}
{{- $flag := splitList "=" . | first }}
{{- if has $flag $own }}
- extraArgs contains {{ $flag }}, which another value sets: use that value
{{- end }}
{{- end }}
{{- range .Values.extraEnv }}
{{- $flag := .name | trimPrefix "TOLLKEEPER_" | lower | replace "_" "-" | printf "--%s" }}
{{- if and (hasPrefix "TOLLKEEPER_" .name) (has $flag $own) }}
- extraEnv contains {{ .name }}, but {{ $flag }} has precedence, which another value sets: use that value
{{- end }}
{{- end }}
{{- end -}}

{{/* What the objects of the chart cannot do together. */}}
{{- define "tollkeeper.objectProblems" -}}
{{- if .Values.autoscaling.enabled }}
{{- if gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas) }}
- autoscaling.minReplicas is greater than autoscaling.maxReplicas
{{- end }}
{{- $resources := .Values.resources | default dict }}
{{- if not (or ($resources.requests).cpu ($resources.limits).cpu) }}
- autoscaling.targetCPU is a part of resources.requests.cpu, which is missing
{{- end }}
{{- end }}
{{- if and .Values.autoscaling.keda.enabled (not .Values.autoscaling.enabled) }}
- autoscaling.keda needs autoscaling.enabled
{{- end }}
{{- if and .Values.autoscaling.keda.enabled .Values.autoscaling.metrics }}
- autoscaling.metrics belongs to a HorizontalPodAutoscaler: with KEDA, use autoscaling.keda.triggers
{{- end }}
{{- if and .Values.autoscaling.keda.triggers (not .Values.autoscaling.keda.enabled) }}
- autoscaling.keda.triggers needs autoscaling.keda.enabled
{{- end }}
{{- $fewest := .Values.autoscaling.enabled | ternary .Values.autoscaling.minReplicas .Values.replicas | int }}
{{- $stay := .Values.podDisruptionBudget.minAvailable | toString }}
{{- if and .Values.podDisruptionBudget.enabled (regexMatch "^[0-9]+$" $stay) (ge (int $stay) $fewest) }}
- podDisruptionBudget.minAvailable is {{ $stay }}, and must be less than the number of replicas, {{ $fewest }}, since no node could be drained
{{- end }}
{{- if not .Values.admin.tokenSecret.name }}
{{- range $name, $on := dict "admin.service" .Values.admin.service "networkPolicy.adminClients" .Values.networkPolicy.adminClients }}
{{- if $on }}
- {{ $name }} needs admin.tokenSecret: without a token, the admin API is served on the pod's loopback alone
{{- end }}
{{- end }}
{{- end }}
{{- if and .Values.service.nodePorts (eq .Values.service.type "ClusterIP") }}
- service.nodePorts needs the service.type LoadBalancer or NodePort
{{- end }}
{{- if eq (int .Values.service.grpcPort) (int .Values.service.httpPort) }}
- service.grpcPort and service.httpPort are both {{ .Values.service.grpcPort }}, and must differ
{{- end }}
{{- if and (.Values.service.nodePorts).http (not (include "tollkeeper.servesHttp" .)) }}
- service.nodePorts.http needs service.http
{{- end }}
{{- if and (eq .Values.monitoring.scrape.kind "ServiceMonitor") (not .Values.service.headless) (not (include "tollkeeper.servesHttp" .)) }}
- monitoring.scrape.kind ServiceMonitor needs service.headless or service.http, since no Service has the port of /metrics
{{- end }}
{{- if and (ne .Values.monitoring.scrape.kind "none") .Values.tls.clientCaSecret.name (not .Values.monitoring.scrape.tlsConfig) (ne (get (.Values.settings | default dict) "tls-scope") "grpc") }}
- monitoring.scrape.tlsConfig is missing: with tls.clientCaSecret, Prometheus needs a certificate, unless settings.tls-scope is grpc
{{- end }}
{{- if and .Values.networkPolicy.enabled (not .Values.networkPolicy.clients) }}
- networkPolicy.clients is empty, which would admit everyone: list who calls, such as namespaceSelector: {} for all pods
{{- end }}
{{- if and .Values.networkPolicy.enabled .Values.networkPolicy.storePorts }}
{{- range include "tollkeeper.storePorts" . | splitList " " | compact }}
{{- if not (has . ($.Values.networkPolicy.storePorts | toStrings)) }}
- networkPolicy.storePorts does not contain {{ . }}, a port of store.url
{{- end }}
{{- end }}
{{- end }}
{{- if .Values.tls.certificate.enabled }}
{{- range $name, $value := dict "tls.secret" .Values.tls.secret "tls.certificate.issuerRef.name" .Values.tls.certificate.issuerRef.name }}
{{- if not $value }}
- tls.certificate needs {{ $name }}
{{- end }}
{{- end }}
{{- range $name, $written := dict "certKey" "tls.crt" "keyKey" "tls.key" }}
{{- if ne (get $.Values.tls $name) $written }}
- tls.{{ $name }} is {{ get $.Values.tls $name | quote }}, but cert-manager writes {{ $written }}
{{- end }}
{{- end }}
{{- end }}
{{- if and .Values.tls.clientCaSecret.name (not .Values.tls.secret) }}
- tls.clientCaSecret needs tls.secret
{{- end }}
{{- if and .Values.clientDomains (not .Values.tls.clientCaSecret.name) }}
- clientDomains needs tls.clientCaSecret, since clients are known by their certificates
{{- end }}
{{- if and .Values.test.clientSecret (not .Values.tls.secret) }}
- test.clientSecret needs tls.secret
{{- end }}
{{- $alerts := list }}
{{- range (include "tollkeeper.alerts" . | fromYaml).groups }}
{{- range .rules }}
{{- $alerts = append $alerts .alert }}
{{- end }}
{{- end }}
{{- range concat (.Values.monitoring.alerts.disabled | default list) (keys (.Values.monitoring.alerts.overrides | default dict)) }}
{{- if not (has . $alerts) }}
- monitoring.alerts names {{ . }}, but the alerts are {{ join ", " $alerts }}
{{- end }}
{{- end }}
{{- if and .Values.service.externalTrafficPolicy (eq .Values.service.type "ClusterIP") }}
- service.externalTrafficPolicy needs the service.type LoadBalancer or NodePort
{{- end }}
{{- range $name := list "podLabels" "commonLabels" }}
{{- range $label, $value := get $.Values $name | default dict }}
{{- if regexMatch "^(app.kubernetes.io/(name|instance|version|managed-by|component)|helm.sh/chart)$" $label }}
- {{ $name }} contains {{ $label }}, which the chart sets itself
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The ports of store.url, separated by spaces. */}}
{{- define "tollkeeper.storePorts" -}}
{{- $url := include "tollkeeper.storeUrl" . -}}
{{- if not (regexMatch `^memory:|[+]unix:` $url) -}}
{{- range regexReplaceAll `^.*://(.*@)?|/.*$` $url "" | splitList "," -}}
{{- $default := contains "+sentinel:" $url | ternary "26379" "6379" -}}
{{- regexFind ":[0-9]+$" . | trimPrefix ":" | default $default | printf "%s " -}}
{{- end -}}
{{- end -}}
{{- end -}}
