{{- define "hearth.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "hearth.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "hearth.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "hearth.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{/* Labels that select pods of one component: (list . "gateway"). They never change between versions. */}}
{{- define "hearth.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "hearth.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* Labels of an object: (list . "gateway"). */}}
{{- define "hearth.labels" -}}
{{- $root := index . 0 -}}
{{ include "hearth.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: hearth
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name ($root.Chart.Version | replace "+" "_") }}
{{- with $root.Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "hearth.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "hearth.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end }}

{{/* Reference of an image: (list image defaultTag). */}}
{{- define "hearth.image" -}}
{{- $image := index . 0 -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository (default (index . 1) $image.tag) -}}
{{- end -}}
{{- end }}

{{/* Security context of a pod that passes the restricted profile. */}}
{{- define "hearth.podSecurity" -}}
runAsNonRoot: true
{{- if not .Values.podSecurity.openshift }}
runAsUser: {{ .Values.podSecurity.runAsUser }}
runAsGroup: {{ .Values.podSecurity.runAsUser }}
fsGroup: {{ .Values.podSecurity.runAsUser }}
{{- end }}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "hearth.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* The configuration as the gateway reads it. */}}
{{- define "hearth.config" -}}
{{- $ours := dict "listen" "0.0.0.0:8000" "metrics_listen" "0.0.0.0:9464" -}}
{{- if ne .Values.mode "proxy" -}}
{{- $_ := set $ours "extproc" (mergeOverwrite (default dict .Values.config.extproc | deepCopy) (dict "listen" "0.0.0.0:9002")) -}}
{{- end -}}
{{- if .Values.scaler.enabled -}}
{{- $_ := set $ours "supply" (dict "listen" "0.0.0.0:9772") -}}
{{- end -}}
{{- if .Values.secrets.adminToken -}}
{{- $_ := set $ours "admin_listen" "0.0.0.0:9091" -}}
{{- end -}}
{{- if or .Values.policy .Values.existingPolicy -}}
{{- $_ := set $ours "policy" "/etc/hearth/policy.yaml" -}}
{{- end -}}
{{- if .Values.secrets.tls -}}
{{- $_ := set $ours "tls" (dict "cert" "/etc/hearth-tls/tls.crt" "key" "/etc/hearth-tls/tls.key") -}}
{{- end -}}
{{- if and .Values.agent.enabled (not (dig "discovery" "agent_registry" "" .Values.config)) -}}
{{- $_ := set $ours "discovery" (dict "agent_registry" true) -}}
{{- else if not (or .Values.config.discovery .Values.config.model_list) -}}
{{- $_ := set $ours "discovery" (dict "kubernetes" (dict "selector" "app.kubernetes.io/component=vllm")) -}}
{{- end -}}
{{- if not (or (include "hearth.redis" .) .Values.config.gateways .Values.autoscaling.enabled (eq (int .Values.replicas) 1)) -}}
{{- $_ := set $ours "gateways" (int .Values.replicas) -}}
{{- end -}}
{{- $times := dict "lame_duck_s" .Values.drain.lameDuckSeconds "drain_s" .Values.drain.drainSeconds -}}
{{- $_ := set $ours "timeouts" $times -}}
{{- mergeOverwrite (deepCopy .Values.config) $ours | toYaml -}}
{{- end }}

{{/* Environment that says where Redis is; empty without one. */}}
{{- define "hearth.redis" -}}
{{- if .Values.redis.own.enabled -}}
{{- with .Values.redis.own.password }}
- name: REDIS_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ .name }}, key: {{ .key }}}}
{{- end }}
- name: HEARTH_REDIS
  value: redis://{{ if .Values.redis.own.password }}:$(REDIS_PASSWORD)@{{ end }}{{ include "hearth.fullname" . }}-redis:6379/0
{{- else if .Values.secrets.redisUrl -}}
- name: HEARTH_REDIS
  valueFrom: {secretKeyRef: {name: {{ .Values.secrets.redisUrl.name }}, key: {{ .Values.secrets.redisUrl.key }}}}
{{- end -}}
{{- end }}
